/* SPDX-License-Identifier: Apache-2.0 */
/* When an operator of a guest may run: by its share (gate_bucket.c), or because the owner waits
 * (gate_owner.c). The gate waits for time to pass and for the owner's word, never for a thread of
 * its own process; its lock is not held while it sleeps. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"

static const int64_t LEAD_NS = SLIP_MS;       /* how far ahead of the device work is queued */
static const int64_t GRACE_NS = 20 * SLIP_MS; /* of processor time, after a signal, */
static const int64_t GRACE_EVERY_NS = 1000 * SLIP_MS; /* once a second */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t heeded; /* so many signals */
static uint64_t grace_given_ns;
static uint64_t grace_until_cpu_ns; /* or 0 */

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
  const uint32_t* futex;
  uint32_t futex_word;
};

void slip_gate_reset(void) {
  pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  memcpy(&lock, &fresh, sizeof lock); /* after a fork it may be held by a thread that is not here */
  slip_bucket_reset();
  slip_owner_reset();
  slip_gate()->budget_ns = 0;
  slip_estimates_forget();
}

/* The owners of the guest's GPUs that have a word; others take their places, or nobody does. */
void slip_gate_watch(const struct slip_owner_phase* const* phases, const int64_t* descriptors,
                     uint64_t count) {
  pthread_mutex_lock(&lock);
  slip_owner_watch(phases, descriptors, count);
  pthread_mutex_unlock(&lock);
}

/* Whoever waits goes on; what Python gave us is not touched any more. */
void slip_gate_let_go(void) {
  pthread_mutex_lock(&lock);
  slip_gate()->share_pct = 100;
  slip_gate()->down = NULL;
  slip_owner_watch(NULL, NULL, 0);
  pthread_mutex_unlock(&lock);
}

/* A signal's handler runs in Python, after the operators that Python has called have come back. It
 * may have come at any time since Python last looked: also before this operator, or between two of
 * its sleeps. */
static void give_grace(bool interrupted, uint64_t now_ns) {
  uint64_t heard = slip_signals_heard();
  if ((interrupted || heard != heeded) && now_ns > grace_given_ns + (uint64_t)GRACE_EVERY_NS) {
    heeded = heard;
    grace_given_ns = now_ns;
    grace_until_cpu_ns = slip_cpu_ns() + (uint64_t)GRACE_NS;
  }
}

static bool has_grace(void) {
  if (grace_until_cpu_ns && slip_cpu_ns() >= grace_until_cpu_ns) {
    grace_until_cpu_ns = 0;
  }
  return grace_until_cpu_ns != 0;
}

/* No share is asked for; or the coordinator is gone, or wants something that is done at the next
 * boundary: get there. */
static bool is_free(uint64_t now_ns) {
  const struct slip_control_down* down = slip_gate()->down;
  bool wanted = down && down->request && down->epoch != slip_gate()->told_epoch;
  return slip_share_pct() >= 100 || wanted || (down && down->lease_until_ns < now_ns);
}

/* A coordinator that says nothing at all means it: it measures the owner alone, waits and all. A
 * gate without a page, which nobody measures by, has the waits beside any share. */
static bool has_nothing(void) { return slip_gate()->down && slip_share_pct() == 0; }

static struct verdict by_share(uint64_t now_ns) {
  uint64_t rest_ns = slip_bucket_rest_ns(now_ns);
  return (struct verdict){.go = rest_ns == 0, .until_ns = now_ns + rest_ns};
}

static struct verdict judge(uint64_t begin_ns, uint64_t duration_ns, uint64_t now_ns) {
  struct verdict go = {.go = true};
  struct slip_owner owner;
  if (is_free(now_ns)) {
    slip_bucket_forgive();
    return go;
  }
  if (has_grace()) {
    return go;
  }
  if (has_nothing() || !slip_owner_speaks(&owner, now_ns)) {
    return by_share(now_ns);
  }
  if (owner.is_dead) {
    slip_bucket_forgive();
    return go;
  }
  go.word = owner.word;
  slip_owner_turned(&owner, now_ns);
  bool is_open = owner.word & 1;
  uint64_t from_ns = begin_ns > owner.idle_from_ns ? begin_ns : owner.idle_from_ns;
  bool is_near = begin_ns >= owner.idle_from_ns && begin_ns <= now_ns + (uint64_t)LEAD_NS;
  if (is_open && is_near && slip_owner_spares(&owner, begin_ns, duration_ns, now_ns)) {
    return go;
  }
  struct verdict verdict = by_share(now_ns);
  if (verdict.go) {
    slip_owner_is_charged();
  }
  verdict.word = owner.word;
  verdict.on_word = !verdict.go;
  verdict.futex = owner.futex;
  verdict.futex_word = owner.futex_word;
  if (is_open && !is_near && from_ns < verdict.until_ns) {
    verdict.until_ns = from_ns;
  }
  return verdict;
}

/* Whether a signal ended the sleep. */
static bool sleep_for(const struct verdict* verdict, uint64_t now_ns) {
  uint64_t latest_ns = now_ns + (uint64_t)SLIP_LONGEST_SLEEP_NS; /* a new share, a dead owner */
  uint64_t until_ns = verdict->until_ns < latest_ns ? verdict->until_ns : latest_ns;
  struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                           .tv_nsec = (long)(until_ns % 1000000000u)};
  if (!verdict->on_word) {
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR;
  }
  /* FUTEX_WAIT_BITSET takes the time as an absolute one. */
  long woken = syscall(SYS_futex, verdict->futex, FUTEX_WAIT_BITSET, verdict->futex_word, &until,
                       NULL, FUTEX_BITSET_MATCH_ANY);
  if (woken == 0) {
    sched_yield(); /* who woke us is about to wait, and should come to it */
    return false;
  }
  bool interrupted = errno == EINTR;
  if (errno == EFAULT) { /* the owner has cut its file short */
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
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
    struct verdict verdict = judge(begin_ns > now_ns ? begin_ns : now_ns, duration_ns, now_ns);
    leave.word = verdict.word;
    if (first) {
      leave.came = verdict.word;
    }
    slip_gate()->sleeps += !verdict.go;
    pthread_mutex_unlock(&lock);
    if (verdict.go) {
      return leave;
    }
    bool interrupted = sleep_for(&verdict, now_ns);
    uint64_t woken_ns = slip_now_ns();
    pthread_mutex_lock(&lock);
    give_grace(interrupted, woken_ns);
    slip_gate()->slept_ns += woken_ns - now_ns;
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
  slip_use_ns(device_ns);
  slip_owner_device_ends(ends_ns);
  pthread_mutex_unlock(&lock);
}

/* What had the device for itself took its time by the clock. Of what ran on into the owner's time
 * the processor time is known; were it not learned, no operator longer than all waits would be. */
static void learn(struct slip_estimate* estimate, uint64_t key, bool crossed, uint64_t now_ns) {
  pthread_mutex_lock(&lock);
  uint64_t took_ns = crossed ? slip_owner_crossed_ns(running.began_ns) : now_ns - running.began_ns;
  slip_estimate_learn(estimate, key, took_ns);
  pthread_mutex_unlock(&lock);
}

/* Before each operator. */
void slip_gate_operator(uint64_t name_hash) {
  uint64_t now_ns = slip_now_ns();
  slip_gate()->operators++; /* threads may miss each other's: it is for looking at */
  if (!slip_gate()->owners) {
    if (!slip_bucket_is_open(now_ns)) {
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
