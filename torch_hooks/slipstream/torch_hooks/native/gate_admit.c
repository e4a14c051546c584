/* SPDX-License-Identifier: Apache-2.0 */
/* When an operator of a guest may run.
 *
 * The share is kept by a token bucket: time fills it at the share, device time that was used
 * empties it. Who has emptied it rests until a slice is in it again, so that the gate sleeps a few
 * times a second and not at each operator. An owner that says when it waits lets a guest have its
 * waits on top: what is expected to end before the wait does may run, and what is not may do so on
 * a budget that is refilled at one percent and charged with what the owner was measured to lose.
 * The gate waits for time to pass and for the owner's word, never for a thread of its own process.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"

#define MS INT64_C(1000000)

static const int64_t SLICE_NS = 8 * MS;
static const int64_t REST_UNTIL_NS =
    9 * MS; /* a little more: who wakes too early would nap again */
static const int64_t FULL_NS = 16 * MS;
static const int64_t LONGEST_SLEEP_NS =
    100 * MS;                                 /* to see a new share, a lost lease, a dead owner */
static const int64_t LOOK_EVERY_NS = MS / 10; /* the CPU's clock costs half a microsecond */
static const int64_t REFERENCE_NS =
    MS; /* how old the CPU time may be that overruns are told from */
static const int64_t GRACE_NS = 20 * MS; /* after a signal, once a second */
static const int64_t GRACE_EVERY_NS = 1000 * MS;
static const int64_t BUDGET_DIVISOR = 100; /* one percent */
static const int64_t BUDGET_LIMIT_NS = 10 * MS;

static struct slip_gate gate = {.share_pct = 100, .phase_descriptor = -1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The bucket. */
static uint64_t settled_ns;
static uint64_t settled_cpu_ns;
static uint64_t by_hand_ns;
static uint64_t next_look_ns;
static bool resting;
static uint64_t grace_until_ns;
/* The owner. */
static uint64_t budget_filled_ns;
static uint32_t settled_word;
static uint64_t owner_seen_ns; /* when it was last looked whether it lives */
static uint32_t dead_word;
static bool owner_is_dead; /* while its word is that one */
static uint64_t reference_ns;
static uint64_t reference_cpu_ns;
static struct {
  uint64_t since_ns;
  uint64_t used_ns;
} crossing; /* what was used from when on, when the owner's word was last found changed */
static uint64_t device_free_ns; /* when all is done that was launched by hand */

static _Thread_local struct {
  struct slip_estimate* estimate;
  uint64_t key;
  uint64_t began_ns;
  uint32_t word;
} running;

struct verdict {
  bool go;
  bool on_word; /* sleep until the owner's word changes, or until: */
  uint64_t until_ns;
  uint32_t word;
};

struct slip_gate* slip_gate(void) { return &gate; }

static uint64_t read_clock(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t slip_now_ns(void) { return read_clock(CLOCK_MONOTONIC); }

static uint64_t used_ns(void) {
  return gate.charged_by_hand ? by_hand_ns : read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

void slip_gate_reset(void) {
  pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  memcpy(&lock, &fresh, sizeof lock); /* after a fork it may be held by a thread that is not here */
  settled_ns = reference_ns = budget_filled_ns = slip_now_ns();
  settled_cpu_ns = reference_cpu_ns = used_ns();
  next_look_ns = device_free_ns = 0;
  settled_word = 0;
  owner_is_dead = false;
  resting = true;
  gate.balance_ns = SLICE_NS / 2; /* on the average of what it will be */
  gate.budget_ns = 0;
  slip_estimates_forget();
}

/* The GPU has another owner, or none that says anything: null and -1. */
void slip_gate_watch(const struct slip_owner_phase* phase, int64_t descriptor) {
  pthread_mutex_lock(&lock);
  gate.phase = phase;
  gate.phase_descriptor = descriptor;
  settled_word = 0;
  owner_is_dead = false;
  budget_filled_ns = slip_now_ns(); /* what nobody could lose is not saved up */
  pthread_mutex_unlock(&lock);
}

/* Whoever waits goes on; what Python gave us is not touched any more. */
void slip_gate_let_go(void) {
  pthread_mutex_lock(&lock);
  gate.share_pct = 100;
  gate.down = NULL;
  gate.phase = NULL;
  gate.phase_descriptor = -1;
  pthread_mutex_unlock(&lock);
}

static uint64_t share_pct(void) { return gate.down ? gate.down->share_pct : gate.share_pct; }

/* A signal's handler runs in Python, after the operators that Python has called have come back. */
static void give_grace(uint64_t now_ns) {
  if (now_ns > grace_until_ns + (uint64_t)GRACE_EVERY_NS) {
    grace_until_ns = now_ns + (uint64_t)GRACE_NS;
  }
}

/* The coordinator is gone, or asks for something that is done at the next boundary: get there. */
static bool must_reach_boundary(uint64_t now_ns) {
  const struct slip_control_down* down = gate.down;
  return down &&
         (down->lease_until_ns < now_ns || (down->request && down->epoch != gate.told_epoch));
}

static bool read_phase(struct slip_owner_phase* phase) {
  return gate.phase_descriptor >= 0 &&
         pread((int)gate.phase_descriptor, phase, sizeof *phase, 0) == sizeof *phase && phase->pid;
}

/* The owner holds a lock on the file for as long as it lives. */
static bool owner_lives(void) {
  struct flock wanted = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  return fcntl((int)gate.phase_descriptor, F_GETLK, &wanted) != 0 || wanted.l_type != F_UNLCK;
}

/* One that was killed says nothing any more: its word stays as it was, and nobody is to be spared.
 */
static void look_after_owner(const struct slip_owner_phase* phase, uint64_t now_ns) {
  if (now_ns - owner_seen_ns < (uint64_t)LONGEST_SLEEP_NS) {
    return;
  }
  owner_seen_ns = now_ns;
  bool is_dead = !owner_lives();
  gate.owners_found_dead += is_dead && !owner_is_dead;
  owner_is_dead = is_dead;
  dead_word = phase->word;
}

/* What was used is taken out of the bucket. Use while the owner waited makes no debts: it counts
 * towards the minimum share, but what the owner left idle is nobody's loss. */
static void settle(uint64_t now_ns, bool owner_waited) {
  uint64_t cpu_ns = used_ns();
  int64_t used = (int64_t)(cpu_ns - settled_cpu_ns);
  gate.charged_ns += (uint64_t)used;
  gate.balance_ns += (int64_t)((now_ns - settled_ns) * share_pct() / 100) - used;
  settled_ns = now_ns;
  settled_cpu_ns = cpu_ns;
  if (gate.balance_ns > FULL_NS) {
    gate.balance_ns = FULL_NS;
  }
  if (gate.balance_ns >= SLICE_NS) {
    resting = false;
  } else if (gate.balance_ns <= 0) {
    resting = true;
    if (owner_waited) {
      gate.balance_ns = 0;
    }
  }
}

/* Whether the bucket lets an operator run. It is looked at no more often than it can matter. */
static struct verdict by_share(uint64_t now_ns) {
  if (!resting && now_ns < next_look_ns) {
    return (struct verdict){.go = true};
  }
  settle(now_ns, false);
  if (!resting) {
    next_look_ns = now_ns + (uint64_t)(gate.balance_ns / 2 > LOOK_EVERY_NS ? gate.balance_ns / 2
                                                                           : LOOK_EVERY_NS);
    if (gate.charged_by_hand) {
      next_look_ns = 0;
    }
    return (struct verdict){.go = true};
  }
  uint64_t share = share_pct();
  int64_t missing_ns = REST_UNTIL_NS - gate.balance_ns;
  int64_t sleep_ns = share ? missing_ns * 100 / (int64_t)share : LONGEST_SLEEP_NS;
  return (struct verdict){.until_ns = now_ns + (uint64_t)sleep_ns};
}

static void fill_budget(uint64_t now_ns) {
  gate.budget_ns += (int64_t)(now_ns - budget_filled_ns) / BUDGET_DIVISOR;
  budget_filled_ns = now_ns;
  if (gate.budget_ns > BUDGET_LIMIT_NS) {
    gate.budget_ns = BUDGET_LIMIT_NS;
  }
}

static void refer(uint64_t now_ns) {
  reference_ns = now_ns;
  reference_cpu_ns = used_ns();
}

/* The owner has gone on while an operator of ours ran. What we used since then it lost: until then
 * we were alone, so all that was used beyond that time came after it. */
static void charge_overrun(const struct slip_owner_phase* phase, uint64_t now_ns) {
  int64_t lost_ns;
  if (gate.charged_by_hand) {
    lost_ns = (int64_t)(device_free_ns - phase->closed_ns);
  } else {
    int64_t used = (int64_t)crossing.used_ns;
    int64_t alone = (int64_t)(phase->closed_ns - reference_ns);
    lost_ns = used - (alone > 0 ? alone : 0);
    int64_t after = (int64_t)(now_ns - phase->closed_ns);
    lost_ns = lost_ns < after ? lost_ns : after;
  }
  if (lost_ns > 0) {
    gate.overruns++;
    gate.overrun_ns += (uint64_t)lost_ns;
    gate.budget_ns -= lost_ns;
  }
}

/* The owner's word has changed since it was last looked at. */
static void turn(const struct slip_owner_phase* phase, uint64_t now_ns) {
  fill_budget(now_ns);
  if (settled_word & 1) {
    crossing.since_ns = reference_ns;
    crossing.used_ns = used_ns() - reference_cpu_ns;
    charge_overrun(phase, now_ns);
  }
  settle(now_ns, settled_word & 1);
  resting = gate.balance_ns < SLICE_NS; /* no rest of a slice at the owner's expense */
  if (phase->word & 1) {
    refer(now_ns);
  }
  settled_word = phase->word;
}

static bool fits(const struct slip_owner_phase* phase, uint64_t begin_ns, uint64_t duration_ns,
                 uint64_t now_ns) {
  uint64_t end_ns = begin_ns + duration_ns;
  if (end_ns + (uint64_t)REFERENCE_NS > phase->ends_ns ||
      now_ns - reference_ns > (uint64_t)REFERENCE_NS) {
    refer(now_ns);
  }
  fill_budget(now_ns);
  /* Who has taken more than the budget stays away from the end of the wait by as much. */
  uint64_t debt_ns = gate.budget_ns < 0 ? (uint64_t)-gate.budget_ns : 0;
  if (end_ns + debt_ns <= phase->ends_ns) {
    gate.fitted++;
    return true;
  }
  uint64_t beyond_ns = end_ns - phase->ends_ns;
  uint64_t risk_ns = beyond_ns < duration_ns ? beyond_ns : duration_ns;
  if (gate.budget_ns > (int64_t)risk_ns) {
    gate.risked++;
    return true;
  }
  gate.refused++;
  return false;
}

static struct verdict judge(uint64_t begin_ns, uint64_t duration_ns, uint64_t now_ns) {
  struct slip_owner_phase phase;
  if (share_pct() >= 100 || now_ns < grace_until_ns || must_reach_boundary(now_ns)) {
    return (struct verdict){.go = true};
  }
  if (!read_phase(&phase)) {
    return by_share(now_ns);
  }
  if (phase.word != settled_word) {
    turn(&phase, now_ns);
  }
  bool is_open = phase.word & 1;
  look_after_owner(&phase, now_ns);
  if (owner_is_dead && phase.word == dead_word) {
    return (struct verdict){.go = true, .word = phase.word};
  }
  if (is_open && phase.idle_from_ns <= now_ns &&
      fits(&phase, begin_ns > now_ns ? begin_ns : now_ns, duration_ns, now_ns)) {
    return (struct verdict){.go = true, .word = phase.word};
  }
  struct verdict verdict = by_share(now_ns);
  verdict.word = phase.word;
  if (!verdict.go) {
    verdict.on_word = true;
    if (is_open && phase.idle_from_ns > now_ns && phase.idle_from_ns < verdict.until_ns) {
      verdict.until_ns = phase.idle_from_ns;
    }
  }
  return verdict;
}

/* Whether a signal ended the sleep. */
static bool sleep_for(const struct verdict* verdict, uint64_t now_ns) {
  uint64_t until_ns = verdict->until_ns;
  if (until_ns > now_ns + (uint64_t)LONGEST_SLEEP_NS) {
    until_ns = now_ns + (uint64_t)LONGEST_SLEEP_NS;
  }
  struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                           .tv_nsec = (long)(until_ns % 1000000000u)};
  bool interrupted;
  if (verdict->on_word) {
    /* FUTEX_WAIT_BITSET takes the time as an absolute one. */
    long woken = syscall(SYS_futex, &gate.phase->word, FUTEX_WAIT_BITSET, verdict->word, &until,
                         NULL, FUTEX_BITSET_MATCH_ANY);
    interrupted = woken < 0 && errno == EINTR;
    if (woken == 0) {
      sched_yield();              /* who woke us is about to wait, and should come to it */
    } else if (errno == EFAULT) { /* the owner has cut its file short */
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
  } else {
    interrupted = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR;
  }
  return interrupted;
}

/* Under which of the owner's words an operator came, and under which it may begin. */
struct leave {
  uint32_t came;
  uint32_t word;
};

static struct leave wait_for_leave(uint64_t begin_ns, uint64_t duration_ns,
                                   struct slip_estimate* estimate) {
  struct leave leave = {0};
  uint64_t now_ns = slip_now_ns();
  for (bool first = true;; first = false) {
    pthread_mutex_lock(&lock);
    struct verdict verdict = judge(begin_ns, duration_ns, now_ns);
    leave.word = verdict.word;
    if (first) {
      leave.came = verdict.word;
    }
    gate.sleeps += !verdict.go;
    pthread_mutex_unlock(&lock);
    if (verdict.go) {
      return leave;
    }
    bool interrupted = sleep_for(&verdict, now_ns);
    uint64_t woken_ns = slip_now_ns();
    pthread_mutex_lock(&lock);
    if (interrupted) {
      give_grace(woken_ns);
    }
    gate.slept_ns += woken_ns - now_ns;
    if (estimate && verdict.word & 1) {
      slip_estimate_refused(estimate);
      duration_ns = estimate->duration_ns;
    }
    pthread_mutex_unlock(&lock);
    now_ns = woken_ns;
  }
}

/* Before work whose length is known is queued, to run from begin_ns on at the earliest. */
void slip_gate_admit(uint64_t begin_ns, uint64_t duration_ns) {
  wait_for_leave(begin_ns, duration_ns, NULL);
}

/* After it: the device is used for so long, and all that is queued ends then. */
void slip_gate_charge(uint64_t device_ns, uint64_t ends_ns) {
  pthread_mutex_lock(&lock);
  by_hand_ns += device_ns;
  device_free_ns = ends_ns;
  pthread_mutex_unlock(&lock);
}

/* What had the device for itself took its time by the clock. Of what ran on into the owner's time
 * the processor time is known: were it not learned, an operator longer than all waits never would
 * be. */
static void learn(struct slip_estimate* estimate, uint64_t key, bool crossed, uint64_t now_ns) {
  pthread_mutex_lock(&lock);
  int64_t before_ns = (int64_t)(running.began_ns - crossing.since_ns);
  int64_t took_ns = (int64_t)(now_ns - running.began_ns);
  if (crossed) {
    took_ns = (int64_t)crossing.used_ns - (before_ns > 0 ? before_ns : 0);
  }
  slip_estimate_learn(estimate, key, took_ns > 0 ? (uint64_t)took_ns : 0);
  pthread_mutex_unlock(&lock);
}

/* Before each operator. */
void slip_gate_operator(uint64_t name_hash) {
  uint64_t now_ns = slip_now_ns();
  gate.operators++; /* threads may miss each other's: it is for looking at */
  if (gate.phase_descriptor < 0) {
    if (resting || now_ns >= next_look_ns) {
      wait_for_leave(now_ns, 0, NULL);
    }
    return;
  }
  struct slip_estimate* before = running.estimate;
  uint64_t key = running.key;
  running.estimate = slip_estimate(name_hash);
  running.key = running.estimate->key;
  struct leave leave = wait_for_leave(now_ns, running.estimate->duration_ns, running.estimate);
  if (before && running.word & 1) {
    learn(before, key, leave.came != running.word, now_ns);
  }
  running.word = leave.word;
  running.began_ns = slip_now_ns();
}
