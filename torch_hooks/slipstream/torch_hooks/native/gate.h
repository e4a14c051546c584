/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: where a guest's operators wait. gate.c hangs it into torch, gate_admit.c decides and
 * sleeps. native_gate.py is the same in Python. */
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
  uint64_t owners;                      /* whose words are watched */
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

/* --- gate.c: torch's operators, for the gate and for hold.c ------------------------------------*/
uint64_t slip_torch_add(void** (*start)(void**, const void*), void (*end)(const void*, void*),
                        const char** missing);
void slip_torch_remove(uint64_t added);
const char* slip_torch_name(const void* function);

/* --- gate_admit.c: what gate.c and Python call; safe for threads -------------------------------*/
void slip_gate_reset(void);
void slip_gate_let_go(void);
void slip_gate_watch(const struct slip_owner_phase* const* phases, const int64_t* descriptors,
                     uint64_t count);
void slip_gate_admit(uint64_t begin_ns, uint64_t duration_ns);
void slip_gate_charge(uint64_t device_ns, uint64_t ends_ns);
void slip_gate_operator(uint64_t name_hash);

/* --- gate_cuda.c: the same for operators on CUDA, which only the device can time ---------------*/
const char* slip_cuda_gate_open(void* stream);
void slip_cuda_gate_close(void);
bool slip_cuda_gate_is_open(void);
const char* slip_cuda_gate_problem(void);
void slip_cuda_gate_boundary(void* stream);
void slip_cuda_gate_before(uint64_t name_hash);
void slip_cuda_gate_after(void);

/* Everything below is for the holder of gate_admit.c's lock. */
#define SLIP_MS INT64_C(1000000)
#define SLIP_LONGEST_SLEEP_NS (100 * SLIP_MS)

/* --- gate_bucket.c: the share
 * -------------------------------------------------------------------*/
uint64_t slip_now_ns(void);
uint64_t slip_cpu_ns(void);
uint64_t slip_share_pct(void);
uint64_t slip_used_ns(void);
void slip_use_ns(uint64_t device_ns);
void slip_bucket_reset(void);
void slip_bucket_forgive(void);
void slip_bucket_settle(uint64_t now_ns, bool owner_waited);
bool slip_bucket_is_open(uint64_t now_ns);     /* without a look; needs no lock */
uint64_t slip_bucket_rest_ns(uint64_t now_ns); /* 0: there is something in it */

/* --- gate_owner.c: the owners' waits, as if they were one owner
 * ------------------------------------------------------------*/
struct slip_owner {
  uint32_t word;         /* another one whenever one of theirs is; odd: all of them wait */
  bool is_dead;          /* all that said anything were killed */
  uint64_t idle_from_ns; /* as in slip_owner_phase: when all are */
  uint64_t ends_ns;
  uint64_t closed_ns;
  const uint32_t* futex; /* the word to sleep on, and its value */
  uint32_t futex_word;
};
void slip_owner_reset(void);
void slip_owner_watch(const struct slip_owner_phase* const* phases, const int64_t* descriptors,
                      uint64_t count);
bool slip_owner_speaks(struct slip_owner* owner, uint64_t now_ns);
void slip_owner_turned(const struct slip_owner* owner, uint64_t now_ns);
bool slip_owner_spares(const struct slip_owner* owner, uint64_t begin_ns, uint64_t duration_ns,
                       uint64_t now_ns);
void slip_owner_is_charged(void);
void slip_owner_device_ends(uint64_t ends_ns);
uint64_t slip_owner_crossed_ns(uint64_t began_ns);

/* --- gate_signals.c: signals that Python has a handler for
 * -------------------------------------------*/
void slip_signals_begin(void);
void slip_signals_hear(int number);
void slip_signals_hear_no_more(void);
uint64_t slip_signals_heard(void);

/* --- gate_estimate.c: how long the operator lasts that comes after these names
 * ------------------*/
struct slip_estimate {
  uint64_t key;
  uint32_t seen;
  uint32_t duration_ns;
};
struct slip_estimate* slip_estimate(uint64_t name_hash);
void slip_estimate_learn(struct slip_estimate* estimate, uint64_t key, uint64_t duration_ns);
void slip_estimate_refused(struct slip_estimate* estimate);
void slip_estimates_forget(void);

#endif
