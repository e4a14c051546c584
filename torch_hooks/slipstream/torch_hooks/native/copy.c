/* SPDX-License-Identifier: Apache-2.0 */
/* A copy that passes the caches by, whatever its size. The C library's does so only for what is
 * larger than most of the last cache, which a model's single tensors are not; a copy through the
 * caches reads its target first, and throws out of them what the training had there. */
#include "copy.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>

enum { LINE_BYTES = 64, PAGE_BYTES = 4096, PAGES_AT_ONCE = 4 };

/* Four pages side by side, a line of each in turn: more of the memory is busy at any moment. */
__attribute__((target("avx"))) static void stream(uint8_t* to, const uint8_t* from) {
  for (size_t at = 0; at < PAGE_BYTES; at += LINE_BYTES) {
    for (size_t page = 0; page < PAGES_AT_ONCE; page++) {
      const uint8_t* source = from + page * PAGE_BYTES + at;
      uint8_t* target = to + page * PAGE_BYTES + at;
      __builtin_prefetch(source + 8 * LINE_BYTES);
      __m256i low = _mm256_loadu_si256((const __m256i*)source);
      __m256i high = _mm256_loadu_si256((const __m256i*)(source + 32));
      _mm256_stream_si256((__m256i*)target, low);
      _mm256_stream_si256((__m256i*)(target + 32), high);
    }
  }
}

static int can_stream(void) {
  static int known = -1;
  if (known < 0) {
    __builtin_cpu_init();
    known = __builtin_cpu_supports("avx") ? 1 : 0;
  }
  return known;
}
#endif

/* Copies `count` bytes between two places that do not overlap. */
void slip_copy(void* target, const void* source, size_t count) {
  uint8_t* to = target;
  const uint8_t* from = source;
#ifdef __x86_64__
  size_t unaligned = -(uintptr_t)to % LINE_BYTES;
  if (can_stream() && count >= unaligned + PAGES_AT_ONCE * PAGE_BYTES) {
    memcpy(to, from, unaligned);
    to += unaligned, from += unaligned, count -= unaligned;
    while (count >= PAGES_AT_ONCE * PAGE_BYTES) {
      stream(to, from);
      to += PAGES_AT_ONCE * PAGE_BYTES;
      from += PAGES_AT_ONCE * PAGE_BYTES;
      count -= PAGES_AT_ONCE * PAGE_BYTES;
    }
    _mm_sfence();
  }
#endif
  memcpy(to, from, count);
}
