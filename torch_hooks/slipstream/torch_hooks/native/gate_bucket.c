/* SPDX-License-Identifier: Apache-2.0 */
/* The share: a token bucket. Time fills it at the share, device time that was used empties it. Who
 * has emptied it rests until a slice is in it again, so that the gate sleeps a few times a second
 * and not at each operator. bucket.py is the same in Python. */
#include <time.h>

#include "gate.h"

static const int64_t SLICE_NS = 8 * SLIP_MS;
static const int64_t REST_UNTIL_NS = 9 * SLIP_MS; /* who wakes too early would nap again */
static const int64_t FULL_NS = 16 * SLIP_MS;
static const int64_t LOOK_EVERY_NS = SLIP_MS / 10; /* the CPU's clock costs half a microsecond */

static struct slip_gate gate = {.share_pct = 100};
static uint64_t settled_ns;
static uint64_t settled_used_ns;
static uint64_t by_hand_ns;
static uint64_t next_look_ns;
static bool resting;
static bool forgiven;

struct slip_gate* slip_gate(void) { return &gate; }

static uint64_t read_clock(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t slip_now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

uint64_t slip_cpu_ns(void) { return read_clock(CLOCK_PROCESS_CPUTIME_ID); }

uint64_t slip_share_pct(void) { return gate.down ? gate.down->share_pct : gate.share_pct; }

uint64_t slip_used_ns(void) { return gate.charged_by_hand ? by_hand_ns : slip_cpu_ns(); }

void slip_use_ns(uint64_t device_ns) { by_hand_ns += device_ns; }

void slip_bucket_reset(void) {
  settled_ns = slip_now_ns();
  settled_used_ns = slip_used_ns();
  next_look_ns = 0;
  resting = true;
  forgiven = false;
  gate.balance_ns = SLICE_NS / 2; /* on the average of what it will be */
}

/* What is used now, while no share is asked for, is nobody's debt later. */
void slip_bucket_forgive(void) { forgiven = true; }

/* What was used is taken out of the bucket. Use while the owner waited makes no debts: it counts
 * towards the share, but what the owner left idle is nobody's loss. And a slice that was begun in
 * a wait is not ended at the owner's expense. */
void slip_bucket_settle(uint64_t now_ns, bool owner_waited) {
  uint64_t used_ns = slip_used_ns();
  if (!forgiven) {
    int64_t used = (int64_t)(used_ns - settled_used_ns);
    gate.charged_ns += (uint64_t)used;
    gate.balance_ns += (int64_t)((now_ns - settled_ns) * slip_share_pct() / 100) - used;
  }
  forgiven = false;
  settled_ns = now_ns;
  settled_used_ns = used_ns;
  if (gate.balance_ns > FULL_NS) {
    gate.balance_ns = FULL_NS;
  }
  if (owner_waited && gate.balance_ns < 0) {
    gate.balance_ns = 0;
  }
  if (gate.balance_ns >= SLICE_NS) {
    resting = false;
  } else if (gate.balance_ns <= 0 || owner_waited) {
    resting = true;
  }
}

bool slip_bucket_is_open(uint64_t now_ns) { return !resting && now_ns < next_look_ns; }

/* The bucket is looked into no more often than it can matter. */
uint64_t slip_bucket_rest_ns(uint64_t now_ns) {
  if (slip_bucket_is_open(now_ns)) {
    return 0;
  }
  slip_bucket_settle(now_ns, false);
  if (resting) {
    uint64_t share = slip_share_pct();
    uint64_t missing_ns = (uint64_t)(REST_UNTIL_NS - gate.balance_ns);
    return share ? missing_ns * 100 / share : (uint64_t)SLIP_LONGEST_SLEEP_NS;
  }
  int64_t pause_ns = gate.balance_ns / 2 > LOOK_EVERY_NS ? gate.balance_ns / 2 : LOOK_EVERY_NS;
  next_look_ns = gate.charged_by_hand ? 0 : now_ns + (uint64_t)pause_ns;
  return 0;
}
