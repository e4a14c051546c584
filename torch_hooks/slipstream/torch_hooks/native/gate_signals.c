/* SPDX-License-Identifier: Apache-2.0 */
/* Python's own handler of a signal only takes a note; what the program wants done is done when its
 * operator comes back. A gate that lets nobody through has to know of each signal, and being woken
 * is not enough: it may come when nobody sleeps. So it is counted on its way to Python's handler.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "gate.h"

static struct sigaction before[NSIG];
static atomic_uint_fast64_t heard;
static unsigned listeners; /* the gate, a hold; by different threads: */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void hear(int number) {
  heard++;
  before[number].sa_handler(number);
}

/* Somebody wants signals counted, until it calls slip_signals_hear_no_more. */
void slip_signals_begin(void) {
  pthread_mutex_lock(&lock);
  listeners++;
  pthread_mutex_unlock(&lock);
}

static void hear_one(int number) {
  struct sigaction now;
  if (number <= 0 || number >= NSIG || sigaction(number, NULL, &now) || now.sa_flags & SA_SIGINFO ||
      now.sa_handler == hear || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) {
    return;
  }
  before[number] = now;
  now.sa_handler = hear;
  sigaction(number, &now, NULL);
}

/* Count this one from now on; only those that come with nothing but their number. */
void slip_signals_hear(int number) {
  pthread_mutex_lock(&lock);
  hear_one(number);
  pthread_mutex_unlock(&lock);
}

/* Whoever has put another handler in place of ours keeps it. */
void slip_signals_hear_no_more(void) {
  pthread_mutex_lock(&lock);
  listeners -= listeners > 0;
  for (int number = 1; number < NSIG && !listeners; number++) {
    struct sigaction now;
    if (sigaction(number, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
        now.sa_handler == hear) {
      sigaction(number, &before[number], NULL);
    }
  }
  pthread_mutex_unlock(&lock);
}

uint64_t slip_signals_heard(void) { return heard; }
