/* SPDX-License-Identifier: Apache-2.0 */
/* An owner that says when it waits lets a guest have its waits on top of the share: what is
 * expected to end before the wait does may run, and what is not may do so on a budget that is
 * refilled at one percent and charged with what the owner was measured to lose. A guest on several
 * GPUs has several owners and an operator may be on any GPU: it has the time in which all wait. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "gate.h"

static const int64_t REFERENCE_NS = SLIP_MS; /* how old a reference may get, and how near the end */
static const int64_t BUDGET_DIVISOR = 100;   /* one percent */
static const int64_t BUDGET_LIMIT_NS = 10 * SLIP_MS;

static uint64_t budget_filled_ns;
static uint32_t settled_word;
static struct watched {
  const struct slip_owner_phase* phase; /* mapped for the futex only: reading it may kill */
  int descriptor;
  uint64_t seen_ns; /* when it was last looked whether the owner lives */
  bool is_dead;     /* while its word is this one */
  uint32_t dead_word;
} watched[SLIP_CONTROL_MAX_GPUS];
/* A moment of the wait and what had been used then, from which overruns are told. */
static uint64_t reference_ns;
static uint64_t reference_used_ns;
/* When the owner's word was last found changed: what had been used since which moment. */
static uint64_t crossing_since_ns;
static uint64_t crossing_used_ns;
static uint64_t device_ends_ns; /* when all is done that was launched by hand */
static bool is_shares; /* what was launched last had leave by the share, and not by a wait */

void slip_owner_reset(void) {
  budget_filled_ns = slip_now_ns(); /* what nobody could lose is not saved up */
  settled_word = 0;
}

void slip_owner_watch(const struct slip_owner_phase* const* phases, const int64_t* descriptors,
                      uint64_t count) {
  count = count < SLIP_CONTROL_MAX_GPUS ? count : SLIP_CONTROL_MAX_GPUS;
  memset(watched, 0, sizeof watched);
  for (uint64_t at = 0; at < count; at++) {
    watched[at].phase = phases[at];
    watched[at].descriptor = (int)descriptors[at];
  }
  slip_gate()->owners = count;
  slip_owner_reset();
}

/* One that was killed says nothing any more: its word stays as it was, and nobody is to be spared.
 * The owner holds a lock on the file for as long as it lives. */
static bool is_dead(struct watched* one, uint32_t word, uint64_t now_ns) {
  if (now_ns - one->seen_ns >= (uint64_t)SLIP_LONGEST_SLEEP_NS) {
    struct flock wanted = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    bool asked = fcntl(one->descriptor, F_GETLK, &wanted) == 0;
    bool was_dead = one->is_dead;
    one->is_dead = asked && wanted.l_type == F_UNLCK;
    slip_gate()->owners_found_dead += one->is_dead && !was_dead;
    one->dead_word = word;
    one->seen_ns = now_ns;
  }
  return one->is_dead && word == one->dead_word;
}

/* One more owner beside those that are in `all` already. */
static void join(struct slip_owner* all, const struct watched* one,
                 const struct slip_owner_phase* phase, bool is_first) {
  bool waits = phase->word & 1, all_wait = is_first || all->word & 1;
  if (is_first || (all_wait && !waits)) {
    all->futex = &one->phase->word; /* who is still at work is waited for first */
    all->futex_word = phase->word;
  }
  if (is_first || phase->idle_from_ns > all->idle_from_ns) {
    all->idle_from_ns = phase->idle_from_ns;
  }
  if (is_first || phase->ends_ns < all->ends_ns) {
    all->ends_ns = phase->ends_ns; /* 0, unknown, is the least */
  }
  /* Of those at work the one that went on first ended the wait of all. */
  bool ended_sooner = waits ? all_wait && phase->closed_ns > all->closed_ns
                            : all_wait || phase->closed_ns < all->closed_ns;
  if (is_first || ended_sooner) {
    all->closed_ns = phase->closed_ns;
  }
  all->word = (((all->word >> 1) + phase->word) << 1) | (all_wait && waits);
}

/* Whether there is somebody to be spared: false without an owner that says anything. */
bool slip_owner_speaks(struct slip_owner* owner, uint64_t now_ns) {
  bool speaks = false;
  *owner = (struct slip_owner){.is_dead = true};
  for (uint64_t at = 0; at < slip_gate()->owners; at++) {
    struct watched* one = &watched[at];
    struct slip_owner_phase phase;
    if (pread(one->descriptor, &phase, sizeof phase, 0) != (ssize_t)sizeof phase || !phase.pid) {
      continue;
    }
    speaks = true;
    if (!is_dead(one, phase.word, now_ns)) {
      join(owner, one, &phase, owner->is_dead);
      owner->is_dead = false;
    }
  }
  return speaks;
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
 * we were alone, so all that was used beyond that time came after it. What the share allowed is
 * paid for out of the bucket: charged to this budget, too, a share would take the waits away for
 * good. */
static void charge_overrun(const struct slip_owner* owner, uint64_t now_ns) {
  struct slip_gate* gate = slip_gate();
  int64_t lost_ns = (int64_t)(device_ends_ns - owner->closed_ns);
  if (!gate->charged_by_hand) {
    int64_t alone_ns = (int64_t)(owner->closed_ns - reference_ns);
    int64_t after_ns = (int64_t)(now_ns - owner->closed_ns);
    lost_ns = (int64_t)crossing_used_ns - (alone_ns > 0 ? alone_ns : 0);
    lost_ns = lost_ns < after_ns ? lost_ns : after_ns;
  }
  if (lost_ns > 0 && !is_shares) {
    gate->overruns++;
    gate->overrun_ns += (uint64_t)lost_ns;
    gate->budget_ns -= lost_ns;
  }
}

/* To be called before anything is decided by a word: it may be another one than the last time. */
void slip_owner_turned(const struct slip_owner* owner, uint64_t now_ns) {
  if (owner->word == settled_word) {
    return;
  }
  bool waited = settled_word & 1;
  fill_budget(now_ns);
  if (waited) {
    crossing_since_ns = reference_ns;
    crossing_used_ns = slip_used_ns() - reference_used_ns;
    charge_overrun(owner, now_ns);
  }
  slip_bucket_settle(now_ns, waited);
  if (owner->word & 1) {
    refer(now_ns);
  }
  settled_word = owner->word;
}

/* Whether an operator may run in the wait that this word has opened. */
bool slip_owner_spares(const struct slip_owner* owner, uint64_t begin_ns, uint64_t duration_ns,
                       uint64_t now_ns) {
  struct slip_gate* gate = slip_gate();
  uint64_t end_ns = begin_ns + duration_ns;
  if (end_ns + (uint64_t)REFERENCE_NS > owner->ends_ns ||
      now_ns - reference_ns > (uint64_t)REFERENCE_NS) {
    refer(now_ns);
  }
  fill_budget(now_ns);
  /* Who has taken more than the budget stays away from the end of the wait by as much. */
  uint64_t debt_ns = gate->budget_ns < 0 ? (uint64_t)-gate->budget_ns : 0;
  if (end_ns + debt_ns <= owner->ends_ns) {
    gate->fitted++;
    is_shares = false;
    return true;
  }
  uint64_t beyond_ns = end_ns > owner->ends_ns ? end_ns - owner->ends_ns : 0;
  uint64_t risk_ns = beyond_ns < duration_ns ? beyond_ns : duration_ns;
  if (gate->budget_ns > (int64_t)risk_ns) {
    gate->risked++;
    is_shares = false;
    return true;
  }
  gate->refused++;
  return false;
}

/* Leave was given by the share. */
void slip_owner_is_charged(void) { is_shares = true; }

void slip_owner_device_ends(uint64_t ends_ns) { device_ends_ns = ends_ns; }

/* How long an operator took that began then and during which the word changed. */
uint64_t slip_owner_crossed_ns(uint64_t began_ns) {
  uint64_t before_ns = began_ns > crossing_since_ns ? began_ns - crossing_since_ns : 0;
  return crossing_used_ns > before_ns ? crossing_used_ns - before_ns : 0;
}
