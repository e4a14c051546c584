/* SPDX-License-Identifier: Apache-2.0
 *
 * The two texts the wrapper reads: a job's marker and a record's list of node names.
 */
#include <string.h>

#include "advice_board.h"

enum { TOKEN_DIGITS = 16, MOST_DIGITS = 9 };

/* A piece of text, or what is left of it. */
struct text {
  const char* at;
  const char* end;
};

/* One item of a list: gpu03, n[1-4,7] or n[1-4]-ib. */
struct item {
  struct text prefix;
  struct text ranges;
  struct text suffix;
};

struct caller {
  void (*each)(const char* name, void* context);
  void* context;
  long names;
};

static bool marker_at(const char* words, const char* end, uint64_t* token);
static bool hex(const char* digits, uint64_t* value);
static bool is_name_character(char c);
static bool read_item(struct text* text, struct item* item);
static bool expand(const struct item* item, struct caller* caller);
static bool say(const struct item* item, const char* digits, size_t count, struct caller* caller);
static struct text name_part(struct text* text);
static size_t length(const struct text* text);
static bool skip(struct text* text, char wanted);
static bool number(struct text* text, uint32_t* value, unsigned* digits);

bool slip_marker_token(const char* comment, uint64_t* token) {
  static const char begin[] = "[slipstream ";
  bool found = false;
  if (!comment) return false;
  for (const char* at = comment; (at = strstr(at, begin)); at += sizeof(begin) - 1) {
    const char* words = at + sizeof(begin) - 1;
    const char* end = strchr(words, ']');
    if (!end) break;
    if (marker_at(words, end, token)) found = true;
  }
  return found;
}

static bool marker_at(const char* words, const char* end, uint64_t* token) {
  bool version = false, whole = false;
  uint64_t value = 0;
  while (words < end) {
    const char* space = memchr(words, ' ', (size_t)(end - words));
    const char* stop = space ? space : end;
    size_t bytes = (size_t)(stop - words);
    if (bytes == 3 && memcmp(words, "v=1", 3) == 0) version = true;
    if (bytes == 6 + TOKEN_DIGITS && memcmp(words, "token=", 6) == 0 && hex(words + 6, &value))
      whole = true;
    words = stop + 1;
  }
  if (version && whole) *token = value;
  return version && whole;
}

static bool hex(const char* digits, uint64_t* value) {
  uint64_t sum = 0;
  for (int i = 0; i < TOKEN_DIGITS; i++) {
    char c = digits[i];
    if (c >= '0' && c <= '9')
      sum = sum << 4 | (uint64_t)(c - '0');
    else if (c >= 'a' && c <= 'f')
      sum = sum << 4 | (uint64_t)(c - 'a' + 10);
    else
      return false;
  }
  *value = sum;
  return true;
}

long slip_names_each(const char* list, size_t bytes, void (*each)(const char* name, void* context),
                     void* context) {
  struct text text = {list, list + bytes};
  struct caller caller = {each, context, 0};
  do {
    struct item item;
    if (!read_item(&text, &item) || !expand(&item, &caller)) return -1;
  } while (skip(&text, ','));
  return text.at == text.end ? caller.names : -1;
}

static bool read_item(struct text* text, struct item* item) {
  item->prefix = name_part(text);
  item->ranges = (struct text){NULL, NULL};
  item->suffix = (struct text){NULL, NULL};
  if (skip(text, '[')) {
    item->ranges.at = text->at;
    while (text->at < text->end && *text->at != ']') text->at++;
    item->ranges.end = text->at;
    if (!skip(text, ']')) return false;
    item->suffix = name_part(text);
  }
  size_t bytes = length(&item->prefix) + length(&item->suffix);
  return (item->ranges.at || bytes > 0) && bytes + MOST_DIGITS < SLIP_NAME_BYTES;
}

/* The names of one item: itself, or one for each number in its brackets. */
static bool expand(const struct item* item, struct caller* caller) {
  if (!item->ranges.at) return say(item, NULL, 0, caller);
  struct text ranges = item->ranges;
  do {
    uint32_t low, high;
    unsigned width, ignored;
    if (!number(&ranges, &low, &width)) return false;
    high = low;
    if (skip(&ranges, '-') && (!number(&ranges, &high, &ignored) || high < low)) return false;
    for (uint32_t value = low; value <= high; value++) {
      char digits[MOST_DIGITS];
      unsigned first = MOST_DIGITS;
      for (uint32_t rest = value; rest || MOST_DIGITS - first < width; rest /= 10)
        digits[--first] = (char)('0' + rest % 10);
      if (!say(item, digits + first, MOST_DIGITS - first, caller)) return false;
    }
  } while (skip(&ranges, ','));
  return ranges.at == ranges.end;
}

static bool say(const struct item* item, const char* digits, size_t count, struct caller* caller) {
  char name[SLIP_NAME_BYTES];
  size_t bytes = length(&item->prefix);
  if (++caller->names > (long)SLIP_MOST_NAMES) return false;
  if (bytes) memcpy(name, item->prefix.at, bytes);
  if (count) memcpy(name + bytes, digits, count);
  bytes += count;
  if (length(&item->suffix)) memcpy(name + bytes, item->suffix.at, length(&item->suffix));
  name[bytes + length(&item->suffix)] = '\0';
  caller->each(name, caller->context);
  return true;
}

static struct text name_part(struct text* text) {
  struct text part = {text->at, text->at};
  while (part.end < text->end && is_name_character(*part.end)) part.end++;
  text->at = part.end;
  return part;
}

static size_t length(const struct text* text) { return (size_t)(text->end - text->at); }

static bool skip(struct text* text, char wanted) {
  if (text->at == text->end || *text->at != wanted) return false;
  text->at++;
  return true;
}

static bool number(struct text* text, uint32_t* value, unsigned* digits) {
  *value = 0;
  *digits = 0;
  for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
    if (++*digits > MOST_DIGITS) return false;
    *value = *value * 10 + (uint32_t)(*text->at - '0');
  }
  return *digits > 0;
}

static bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}
