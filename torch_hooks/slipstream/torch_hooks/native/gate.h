/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: where a guest's operators wait. gate.c hangs it into torch, gate_admit.c decides,
 * gate_estimate.c says how long an operator will take. native_gate.py is the same in Python. */
#ifndef SLIPSTREAM_NATIVE_GATE_H
#define SLIPSTREAM_NATIVE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "../../wire/control_block.h"
#include "../../wire/owner_phase.h"

/* What Python sets while nothing is installed, and what it may read at any time. */
struct slip_gate {
  /* The minimum share, and the epoch whose request has been acted on: for a gate without a page. */
  uint64_t share_pct;
  uint64_t told_epoch;
  const struct slip_control_down* down; /* of this process's page, or null */
  const struct slip_owner_phase*
      phase;                /* mapped for the futex only: reading it may kill, see owner_phase.h */
  int64_t phase_descriptor; /* or -1: no owner says when it waits */
  uint64_t charged_by_hand; /* device time comes from slip_gate_charge, not the CPU's clock */
  /* Counters. */
  uint64_t operators;
  uint64_t sleeps;
  uint64_t slept_ns;
  uint64_t charged_ns;
  uint64_t fitted;  /* launched because it fits the owner's wait */
  uint64_t risked;  /* launched on the delay budget */
  uint64_t refused; /* neither */
  uint64_t overruns;
  uint64_t overrun_ns;
  uint64_t owners_found_dead;
  int64_t balance_ns;
  int64_t budget_ns;
};

struct slip_gate* slip_gate(void);

/* Called in gate_admit.c's order of events; all of it is safe for threads. */
void slip_gate_reset(void);
void slip_gate_let_go(void);
void slip_gate_watch(const struct slip_owner_phase* phase, int64_t descriptor);
void slip_gate_admit(uint64_t begin_ns, uint64_t duration_ns);
void slip_gate_charge(uint64_t device_ns, uint64_t ends_ns);
void slip_gate_operator(uint64_t name_hash);

/* How long the operator lasts that comes after these names; `learn` says how long it took. */
struct slip_estimate {
  uint64_t key;
  uint32_t seen;
  uint32_t duration_ns;
};
struct slip_estimate* slip_estimate(uint64_t name_hash);
void slip_estimate_learn(struct slip_estimate* estimate, uint64_t key, uint64_t duration_ns);
void slip_estimate_refused(struct slip_estimate* estimate);
void slip_estimates_forget(void);

uint64_t slip_now_ns(void);

#endif
