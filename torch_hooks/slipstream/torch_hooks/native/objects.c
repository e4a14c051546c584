/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of certain classes among many: a training process has some hundred thousand objects, and
 * all but a few are looked at only to see that they are something else. They lie all over the
 * memory, so that fetching the next ones while this one is looked at is most of the gain. */
#include <stddef.h>
#include <stdint.h>

enum { AHEAD = 16, FILTER_WORDS = 16, WORD_BITS = 64 };

/* What CPython's objects begin with; Python looks whether it does here. */
struct object {
  intptr_t references;
  const void* type;
};

static size_t filter_bit(const void* type) {
  return ((uintptr_t)type >> 4) % ((size_t)FILTER_WORDS * WORD_BITS);
}

static int is_one_of(const void* type, const void* const* types, size_t count) {
  for (size_t at = 0; at < count; at++) {
    if (types[at] == type) {
      return 1;
    }
  }
  return 0;
}

/* Where objects of these types are, at most `room` of them; returns how many there are. */
size_t slip_find_objects(const struct object* const* objects, size_t count,
                         const void* const* types, size_t type_count, size_t* found, size_t room) {
  uint64_t filter[FILTER_WORDS] = {0};
  for (size_t at = 0; at < type_count; at++) {
    size_t bit = filter_bit(types[at]);
    filter[bit / WORD_BITS] |= UINT64_C(1) << (bit % WORD_BITS);
  }
  size_t seen = 0;
  for (size_t at = 0; at < count; at++) {
    if (at + AHEAD < count) {
      __builtin_prefetch(objects[at + AHEAD]);
    }
    const void* type = objects[at]->type;
    size_t bit = filter_bit(type);
    if (filter[bit / WORD_BITS] >> (bit % WORD_BITS) & 1 && is_one_of(type, types, type_count)) {
      if (seen < room) {
        found[seen] = at;
      }
      seen++;
    }
  }
  return seen;
}
