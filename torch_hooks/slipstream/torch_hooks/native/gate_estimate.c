/* SPDX-License-Identifier: Apache-2.0 */
/* How long the next operator will take, from the names of the last six. A training repeats itself,
 * so six names tell the place in the model; the operator's time includes the Python up to the next
 * one. */
#include "gate.h"

enum { NAMES = 6, PLACES = 8192, FIRST = 8, SHIFT = 3 };

static struct slip_estimate table[PLACES];

static _Thread_local uint64_t last_names[NAMES];
static _Thread_local unsigned next_name;

struct slip_estimate* slip_estimate(uint64_t name_hash) {
  last_names[next_name] = name_hash;
  next_name = (next_name + 1) % NAMES;
  uint64_t key = 0;
  for (unsigned back = 0; back < NAMES; back++) {
    key = key * 0x9e3779b97f4a7c15u + last_names[(next_name + back) % NAMES];
  }
  key ^= key >> 29;
  struct slip_estimate* found = &table[key % PLACES];
  if (found->key != key) {
    *found = (struct slip_estimate){.key = key};
  }
  return found;
}

/* The least of the first samples, then a mean in which an outlier counts little: an estimate that
 * is too large would keep its operator from ever being tried again. */
void slip_estimate_learn(struct slip_estimate* estimate, uint64_t key, uint64_t duration_ns) {
  if (estimate->key != key) {
    return; /* its place was taken meanwhile */
  }
  uint64_t mean = estimate->duration_ns;
  if (duration_ns > UINT32_MAX) {
    duration_ns = UINT32_MAX;
  }
  if (estimate->seen < FIRST) {
    estimate->seen++;
    estimate->duration_ns = estimate->seen == 1 || duration_ns < mean ? duration_ns : mean;
    return;
  }
  if (duration_ns > mean * 2) {
    duration_ns = mean * 2;
  }
  mean += ((int64_t)duration_ns - (int64_t)mean) >> SHIFT;
  estimate->duration_ns = mean > 1000 ? mean : 1000;
}

void slip_estimate_refused(struct slip_estimate* estimate) {
  estimate->duration_ns -= estimate->duration_ns >> 5;
}

void slip_estimates_forget(void) {
  for (unsigned place = 0; place < PLACES; place++) {
    table[place] = (struct slip_estimate){0};
  }
}
