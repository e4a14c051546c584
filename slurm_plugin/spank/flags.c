// SPDX-License-Identifier: Apache-2.0
#include "flags.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = 64, KEY_LIMIT = 32, HINT_LIMIT = 64, GPUS_LIMIT = 4096, ROLE_LIMIT = 1024 };

#define SMALL "abcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"
#define LETTERS SMALL "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

const struct slip_flag slip_flags[SLIP_FLAG_COUNT] = {
    [SLIP_CLASS] = {"slip-class", "SLIPSTREAM_CLASS", "CLASS",
                    "[slipstream] guaranteed, shared, opportunistic or auto: who may be disturbed "
                    "for whom"},
    [SLIP_WEIGHT] = {"slip-weight", "SLIPSTREAM_WEIGHT", "1..16",
                     "[slipstream] turns a shared job gets for each turn of a job of weight 1"},
    [SLIP_ELASTIC] = {"slip-elastic", "SLIPSTREAM_ELASTIC", "MIN-MAX",
                      "[slipstream] how many GPUs the job can train with"},
    [SLIP_HINTS] = {"slip-hints", "SLIPSTREAM_HINTS", "KEY=VALUE,...",
                    "[slipstream] what helps to estimate the job, as in model=resnet50,batch=64"},
    [SLIP_ROLES] = {"slip-roles", "SLIPSTREAM_ROLES", "NAME:COUNT,...",
                    "[slipstream] what the tasks are, as in ps:1,worker:4"},
    [SLIP_DATA] = {"slip-data", "SLIPSTREAM_DATA", "PATH,...",
                   "[slipstream] where the training data is, to place the job near it"},
    [SLIP_NO_SHARE] = {"no-slip-share", "SLIPSTREAM_NO_SHARE", NULL,
                       "[slipstream] no guest may use this job's GPUs"},
    [SLIP_NO_MOVE] = {"no-slip-move", "SLIPSTREAM_NO_MOVE", NULL,
                      "[slipstream] the job is never moved to other GPUs or nodes"},
};

static const char* const GOOD[SLIP_FLAG_COUNT] = {
    [SLIP_CLASS] = "a class: choose guaranteed, shared, opportunistic or auto",
    [SLIP_WEIGHT] = "a weight: choose a whole number from 1 to 16",
    [SLIP_ELASTIC] = "a range of GPUs: write MIN-MAX with 1 <= MIN <= MAX <= 4096, as in 2-8",
    [SLIP_HINTS] =
        "a list of hints: write key=value,key=value with keys of small letters, digits "
        "and _, values of letters, digits and . _ + : / -, each key once, "
        "as in model=resnet50,batch=64",
    [SLIP_ROLES] =
        "a list of roles: write name:count,name:count with names of small letters, "
        "digits and _, counts from 1 to 1024, each name once, as in ps:1,worker:4",
    [SLIP_DATA] =
        "a list of paths: write absolute paths with commas between them, "
        "as in /data/imagenet,/data/coco",
    [SLIP_NO_SHARE] = "a switch: choose 1 or 0",
    [SLIP_NO_MOVE] = "a switch: choose 1 or 0",
};

static bool is_good(enum slip_flag_id flag, const char* value);
static bool is_one_of(const char* value, const char* const* words);
static bool is_elastic(const char* value);
static bool is_pairs(const char* value, char between, bool (*good_value)(const char*, size_t));
static bool is_hint(const char* value, size_t length);
static bool is_count(const char* value, size_t length);
static bool is_data(const char* value);
static bool key_is_repeated(const char* list, const char* key, size_t length);
static bool whole_number(const char* text, size_t length, uint32_t low, uint32_t high);
static void show(const char* value, char shown[SHOWN_BYTES + 4]);

bool slip_check(enum slip_flag_id flag, const char* source, const char* value, char* why,
                size_t why_size) {
  if (strlen(value) > SLIP_VALUE_LIMIT) {
    snprintf(why, why_size, "[slipstream] %s is longer than %d bytes", source, SLIP_VALUE_LIMIT);
    return false;
  }
  if (is_good(flag, value)) return true;
  char shown[SHOWN_BYTES + 4];
  show(value, shown);
  snprintf(why, why_size, "[slipstream] %s=%s is not %s", source, shown, GOOD[flag]);
  return false;
}

static bool is_good(enum slip_flag_id flag, const char* value) {
  static const char* const classes[] = {"guaranteed", "shared", "opportunistic", "auto", NULL};
  static const char* const switches[] = {"0", "1", NULL};
  switch (flag) {
    case SLIP_CLASS:
      return is_one_of(value, classes);
    case SLIP_WEIGHT:
      return whole_number(value, strlen(value), 1, 16);
    case SLIP_ELASTIC:
      return is_elastic(value);
    case SLIP_HINTS:
      return is_pairs(value, '=', is_hint);
    case SLIP_ROLES:
      return is_pairs(value, ':', is_count);
    case SLIP_DATA:
      return is_data(value);
    default:
      return is_one_of(value, switches);
  }
}

static bool is_one_of(const char* value, const char* const* words) {
  for (; *words; words++)
    if (strcmp(value, *words) == 0) return true;
  return false;
}

static bool is_elastic(const char* value) {
  const char* dash = strchr(value, '-');
  if (!dash) return false;
  size_t low = (size_t)(dash - value);
  size_t high = strlen(dash + 1);
  if (!whole_number(value, low, 1, GPUS_LIMIT)) return false;
  if (!whole_number(dash + 1, high, 1, GPUS_LIMIT)) return false;
  // Without leading zeros the longer number is the greater one.
  return low < high || (low == high && strncmp(value, dash + 1, low) <= 0);
}

static bool is_pairs(const char* value, char between, bool (*good_value)(const char*, size_t)) {
  for (const char* pair = value;; pair++) {
    size_t key = strspn(pair, SMALL DIGITS "_");
    if (key == 0 || key > KEY_LIMIT || !strchr(SMALL, pair[0]) || pair[key] != between)
      return false;
    if (key_is_repeated(pair, pair, key)) return false;
    const char* found = pair + key + 1;
    size_t length = strcspn(found, ",");
    if (!good_value(found, length)) return false;
    pair = found + length;
    if (!*pair) return true;
  }
}

static bool is_hint(const char* value, size_t length) {
  return length > 0 && length <= HINT_LIMIT && strspn(value, LETTERS DIGITS "._+:/-") == length;
}

static bool is_count(const char* value, size_t length) {
  return whole_number(value, length, 1, ROLE_LIMIT);
}

static bool is_data(const char* value) {
  for (const unsigned char* at = (const unsigned char*)value; *at; at++)
    if (*at < 0x20 || *at == 0x7f) return false;
  for (const char* path = value;; path++) {
    if (*path != '/') return false;
    path += strcspn(path, ",");
    if (!*path) return true;
  }
}

// Whether the key at the head of `list` comes again further on.
static bool key_is_repeated(const char* list, const char* key, size_t length) {
  while ((list = strchr(list, ',')) != NULL) {
    list++;
    if (strncmp(list, key, length + 1) == 0) return true;
  }
  return false;
}

static bool whole_number(const char* text, size_t length, uint32_t low, uint32_t high) {
  if (length == 0 || length > 9 || strspn(text, DIGITS) < length) return false;
  if (text[0] == '0' && length > 1) return false;
  uint32_t number = 0;
  for (size_t at = 0; at < length; at++) number = number * 10 + (uint32_t)(text[at] - '0');
  return low <= number && number <= high;
}

// For a terminal: short, and without anything that is not plain text.
static void show(const char* value, char shown[SHOWN_BYTES + 4]) {
  size_t length = strnlen(value, SHOWN_BYTES + 1);
  size_t kept = length > SHOWN_BYTES ? SHOWN_BYTES : length;
  for (size_t at = 0; at < kept; at++)
    shown[at] = value[at] < 0x20 || value[at] > 0x7e ? '?' : value[at];
  strcpy(shown + kept, length > SHOWN_BYTES ? "..." : "");
}
