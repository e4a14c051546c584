/* SPDX-License-Identifier: Apache-2.0 */
/* An owner that says when it waits lets a guest have its waits on top of the share: what is
 * expected to end before the wait does may run, and what is not may do so on a budget that is
 * refilled at one percent and charged with what the owner was measured to lose. */
#include <fcntl.h>
#include <unistd.h>

#include "gate.h"

static const int64_t REFERENCE_NS = SLIP_MS; /* how old a reference may get, and how near the end */
static const int64_t BUDGET_DIVISOR = 100;   /* one percent */
static const int64_t BUDGET_LIMIT_NS = 10 * SLIP_MS;

static uint64_t budget_filled_ns;
static uint32_t settled_word;
static uint64_t seen_ns; /* when it was last looked whether the owner lives */
static uint32_t dead_word;
static bool is_dead; /* while its word is that one */
/* A moment of the wait and what had been used then, from which overruns are told. */
static uint64_t reference_ns;
static uint64_t reference_used_ns;
/* When the owner's word was last found changed: what had been used since which moment. */
static uint64_t crossing_since_ns;
static uint64_t crossing_used_ns;
static uint64_t device_ends_ns; /* when all is done that was launched by hand */

void slip_owner_reset(void) {
  budget_filled_ns = slip_now_ns(); /* what nobody could lose is not saved up */
  settled_word = 0;
  is_dead = false;
}

bool slip_owner_speaks(struct slip_owner_phase* phase) {
  int64_t descriptor = slip_gate()->phase_descriptor;
  return descriptor >= 0 &&
         pread((int)descriptor, phase, sizeof *phase, 0) == (ssize_t)sizeof *phase && phase->pid;
}

/* One that was killed says nothing any more: its word stays as it was, and nobody is to be spared.
 * The owner holds a lock on the file for as long as it lives. */
bool slip_owner_is_dead(const struct slip_owner_phase* phase, uint64_t now_ns) {
  struct slip_gate* gate = slip_gate();
  if (now_ns - seen_ns >= (uint64_t)SLIP_LONGEST_SLEEP_NS) {
    struct flock wanted = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    bool asked = fcntl((int)gate->phase_descriptor, F_GETLK, &wanted) == 0;
    bool was_dead = is_dead;
    is_dead = asked && wanted.l_type == F_UNLCK;
    gate->owners_found_dead += is_dead && !was_dead;
    dead_word = phase->word;
    seen_ns = now_ns;
  }
  return is_dead && phase->word == dead_word;
}

static void fill_budget(uint64_t now_ns) {
  struct slip_gate* gate = slip_gate();
  gate->budget_ns += (int64_t)(now_ns - budget_filled_ns) / BUDGET_DIVISOR;
  budget_filled_ns = now_ns;
  if (gate->budget_ns > BUDGET_LIMIT_NS) {
    gate->budget_ns = BUDGET_LIMIT_NS;
  }
}

static void refer(uint64_t now_ns) {
  reference_ns = now_ns;
  reference_used_ns = slip_used_ns();
}

/* The owner has gone on while an operator of ours ran. What we used since then it lost: until then
 * we were alone, so all that was used beyond that time came after it. */
static void charge_overrun(const struct slip_owner_phase* phase, uint64_t now_ns) {
  struct slip_gate* gate = slip_gate();
  int64_t lost_ns = (int64_t)(device_ends_ns - phase->closed_ns);
  if (!gate->charged_by_hand) {
    int64_t alone_ns = (int64_t)(phase->closed_ns - reference_ns);
    int64_t after_ns = (int64_t)(now_ns - phase->closed_ns);
    lost_ns = (int64_t)crossing_used_ns - (alone_ns > 0 ? alone_ns : 0);
    lost_ns = lost_ns < after_ns ? lost_ns : after_ns;
  }
  if (lost_ns > 0) {
    gate->overruns++;
    gate->overrun_ns += (uint64_t)lost_ns;
    gate->budget_ns -= lost_ns;
  }
}

/* To be called before anything is decided by a word: it may be another one than the last time. */
void slip_owner_turned(const struct slip_owner_phase* phase, uint64_t now_ns) {
  if (phase->word == settled_word) {
    return;
  }
  bool waited = settled_word & 1;
  fill_budget(now_ns);
  if (waited) {
    crossing_since_ns = reference_ns;
    crossing_used_ns = slip_used_ns() - reference_used_ns;
    charge_overrun(phase, now_ns);
  }
  slip_bucket_settle(now_ns, waited);
  if (phase->word & 1) {
    refer(now_ns);
  }
  settled_word = phase->word;
}

/* Whether an operator may run in the wait that this word has opened. */
bool slip_owner_spares(const struct slip_owner_phase* phase, uint64_t begin_ns,
                       uint64_t duration_ns, uint64_t now_ns) {
  struct slip_gate* gate = slip_gate();
  uint64_t end_ns = begin_ns + duration_ns;
  if (end_ns + (uint64_t)REFERENCE_NS > phase->ends_ns ||
      now_ns - reference_ns > (uint64_t)REFERENCE_NS) {
    refer(now_ns);
  }
  fill_budget(now_ns);
  /* Who has taken more than the budget stays away from the end of the wait by as much. */
  uint64_t debt_ns = gate->budget_ns < 0 ? (uint64_t)-gate->budget_ns : 0;
  if (end_ns + debt_ns <= phase->ends_ns) {
    gate->fitted++;
    return true;
  }
  uint64_t beyond_ns = end_ns > phase->ends_ns ? end_ns - phase->ends_ns : 0;
  uint64_t risk_ns = beyond_ns < duration_ns ? beyond_ns : duration_ns;
  if (gate->budget_ns > (int64_t)risk_ns) {
    gate->risked++;
    return true;
  }
  gate->refused++;
  return false;
}

void slip_owner_device_ends(uint64_t ends_ns) { device_ends_ns = ends_ns; }

/* How long an operator took that began then and during which the word changed. */
uint64_t slip_owner_crossed_ns(uint64_t began_ns) {
  uint64_t before_ns = began_ns > crossing_since_ns ? began_ns - crossing_since_ns : 0;
  return crossing_used_ns > before_ns ? crossing_used_ns - before_ns : 0;
}
