/* SPDX-License-Identifier: Apache-2.0 */
/* A hold: while the page asks for it, no device operation of this process begins. hold.py decides
 * when and where (torch's operators, or the occupancy GPU's launches); here threads stand still.
 *
 * A thread that stands here waits for the coordinator's word, for the end of the lease or for a
 * signal, never for another thread of its own process, and never with Python's lock: it could be
 * the only one that can answer. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"

enum { NOT_HELD = 0, HELD = 1, WAITED_FOR = 2 }; /* what the page says; control_block.py: Held */

static const uint64_t GRACE_NS = 500 * SLIP_MS;        /* after a signal, */
static const uint64_t GRACE_EVERY_NS = 5000 * SLIP_MS; /* no more often than that */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct slip_control_down* _Atomic down;
static uint64_t* held_word;
static atomic_bool in_force;
static unsigned standing; /* so many threads, since: */
static uint64_t standing_since_ns;
static atomic_uint_fast64_t stood_ns;
static _Thread_local bool exempt;

static atomic_uint_fast64_t heeded; /* signals that operators have made way for, */
static atomic_uint_fast64_t told;   /* and callers in Python */
static atomic_uint_fast64_t grace_until_ns;
static atomic_uint_fast64_t grace_given_ns;

static uint64_t handle; /* torch's, of before_operator */
static atomic_bool on_trial;
static pthread_t trial_thread;
static char trial_name[64];
static uint64_t trial_count;

/* Python's, where it has them: may be null. */
static struct {
  void* (*current)(void);
  void* (*of_this_thread)(void);
  void* (*let_go)(void);
  void (*take)(void*);
} python;

void slip_hold_python(void* current, void* of_this_thread, void* let_go, void* take) {
  python.current = (void* (*)(void))current;
  python.of_this_thread = (void* (*)(void))of_this_thread;
  python.let_go = (void* (*)(void))let_go;
  python.take = (void (*)(void*))take;
}

/* Python's lock, if this thread has it: some operators are called with it. */
static void* let_go_of_python(void) {
  if (!python.current || !python.of_this_thread || !python.let_go || !python.take) {
    return NULL;
  }
  void* state = python.current();
  return state && state == python.of_this_thread() ? python.let_go() : NULL;
}

static bool is_asked(uint64_t now_ns) {
  const struct slip_control_down* page = down;
  return in_force && page &&
         __atomic_load_n(&page->request, __ATOMIC_ACQUIRE) == SLIP_REQUEST_HOLD &&
         __atomic_load_n(&page->lease_until_ns, __ATOMIC_ACQUIRE) >= now_ns;
}

static void say(uint64_t what) {
  if (held_word) {
    __atomic_store_n(held_word, what, __ATOMIC_RELEASE);
  }
}

static void arrive(uint64_t now_ns) {
  pthread_mutex_lock(&lock);
  if (!standing++) {
    standing_since_ns = now_ns;
  }
  if (in_force) {
    say(WAITED_FOR);
  }
  pthread_mutex_unlock(&lock);
}

static void go_on(uint64_t now_ns) {
  pthread_mutex_lock(&lock);
  if (standing && !--standing) {
    stood_ns += now_ns - standing_since_ns;
    if (in_force) {
      say(HELD);
    }
  }
  pthread_mutex_unlock(&lock);
}

/* A signal's handler runs in Python, after the operator that Python has called has come back. */
static bool has_grace(bool interrupted, uint64_t now_ns) {
  uint64_t heard = slip_signals_heard();
  if ((interrupted || heard != heeded) && now_ns > grace_given_ns + GRACE_EVERY_NS) {
    heeded = heard;
    grace_given_ns = now_ns;
    grace_until_ns = now_ns + GRACE_NS;
  }
  return now_ns < grace_until_ns;
}

/* Whether a signal ended the sleep. */
static bool sleep_until_news(uint64_t now_ns) {
  const struct slip_control_down* page = down;
  if (!page) {
    return false;
  }
  uint32_t seen = (uint32_t)__atomic_load_n(&page->sequence, __ATOMIC_ACQUIRE);
  if (!is_asked(now_ns)) {
    return false;
  }
  uint64_t until_ns = now_ns + (uint64_t)SLIP_LONGEST_SLEEP_NS;
  struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                           .tv_nsec = (long)(until_ns % 1000000000u)};
  long woken = syscall(SYS_futex, (const uint32_t*)&page->sequence, FUTEX_WAIT_BITSET, seen, &until,
                       NULL, FUTEX_BITSET_MATCH_ANY);
  if (woken == 0 || errno == EAGAIN || errno == ETIMEDOUT) {
    return false;
  }
  if (errno == EINTR) {
    return true;
  }
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL); /* the page was cut short */
  return false;
}

/* Before an operator of torch, which may be called with Python's lock. */
static void stand_at_operator(void) {
  uint64_t now_ns = slip_now_ns();
  if (exempt || !is_asked(now_ns) || has_grace(false, now_ns)) {
    return;
  }
  arrive(now_ns);
  void* state = let_go_of_python();
  for (bool interrupted = false; is_asked(now_ns) && !has_grace(interrupted, now_ns);) {
    interrupted = sleep_until_news(now_ns);
    now_ns = slip_now_ns();
  }
  if (state) {
    python.take(state);
  }
  go_on(slip_now_ns());
}

/* For callers in Python, without its lock. Returns 1 if a signal came: Python should look at it and
 * call again; 0: the operation may begin. */
int slip_hold_stand(void) {
  uint64_t now_ns = slip_now_ns();
  if (exempt || !is_asked(now_ns)) {
    return 0;
  }
  bool interrupted = false;
  arrive(now_ns);
  while (is_asked(now_ns) && !interrupted && slip_signals_heard() == told) {
    interrupted = sleep_until_news(now_ns);
    now_ns = slip_now_ns();
  }
  told = slip_signals_heard();
  go_on(now_ns);
  return is_asked(now_ns);
}

static void** before_operator(void** context, const void* function) {
  *context = NULL;
  if (on_trial && pthread_equal(trial_thread, pthread_self())) {
    trial_count += strcmp(slip_torch_name(function), trial_name) == 0;
    return context;
  }
  if (in_force) {
    stand_at_operator();
  }
  return context;
}

static void in_child(void) {
  pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
  memcpy(&lock, &fresh, sizeof lock);
  in_force = false;
  standing = 0;
  down = NULL;
  held_word = NULL; /* the page is the parent's */
}

/* The page that asks, and where it is told; null for none. Both must stay mapped for good: a thread
 * may look at them for a moment longer. */
void slip_hold_follow(const struct slip_control_down* page, uint64_t* word) {
  static bool told_of_forks;
  pthread_mutex_lock(&lock);
  if (!told_of_forks) {
    told_of_forks = pthread_atfork(NULL, NULL, in_child) == 0;
  }
  in_force = false;
  down = page;
  held_word = word;
  pthread_mutex_unlock(&lock);
}

void slip_hold_begin(void) {
  pthread_mutex_lock(&lock);
  if (!in_force) {
    heeded = told = slip_signals_heard();
    grace_given_ns = grace_until_ns = 0;
    in_force = true;
  }
  say(standing ? WAITED_FOR : HELD);
  pthread_mutex_unlock(&lock);
}

void slip_hold_end(void) {
  pthread_mutex_lock(&lock);
  const struct slip_control_down* page = down;
  in_force = false;
  say(NOT_HELD);
  pthread_mutex_unlock(&lock);
  if (page) {
    syscall(SYS_futex, (const uint32_t*)&page->sequence, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
  }
}

/* Whether this thread is never held: hooks at work, which hold nobody up. */
void slip_hold_exempt(int yes) { exempt = yes; }

uint64_t slip_hold_stood_ns(void) { return stood_ns; }

/* Null if operators pass here from now on, else what is missing. */
const char* slip_hold_at_operators(void) {
  const char* missing = NULL;
  if (!handle) {
    handle = slip_torch_add(before_operator, NULL, &missing);
  }
  return missing;
}

void slip_hold_off_operators(void) {
  if (handle) {
    slip_torch_remove(handle);
  }
  handle = 0;
}

/* Count an operator of this thread, and hold none of it, until it is asked how often it came. */
void slip_hold_count(const char* name) {
  trial_count = 0;
  trial_thread = pthread_self();
  strncpy(trial_name, name, sizeof trial_name - 1);
  on_trial = true;
}

uint64_t slip_hold_counted(void) {
  on_trial = false;
  return trial_count;
}
