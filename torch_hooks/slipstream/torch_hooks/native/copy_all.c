/* SPDX-License-Identifier: Apache-2.0 */
/* Many copies at once, on several processors, and memory that is new on huge pages.
 *
 * The kernel has to clear new memory before it is given to anybody: that is as much work as the
 * copy, and more than it where pages are small. Threads of ours do both, so that one clears while
 * another copies. They run no Python and take no signals, and are gone when this returns. */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "copy.h"

enum { MOST_THREADS = 16, HUGE_PAGE_BYTES = 2 << 20 };
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; elsewhere an error, which changes nothing */
#endif

struct work {
  const struct slip_piece* pieces;
  size_t count;
  size_t next;
};

static void* copy_some(void* given) {
  struct work* work = given;
  size_t at;
  while ((at = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->count) {
    const struct slip_piece* piece = &work->pieces[at];
    if (piece->fresh_page) {
      /* malloc has written its heads into it: without this it would be 512 small pages. */
      madvise(piece->fresh_page, HUGE_PAGE_BYTES, MADV_COLLAPSE);
      memcpy(piece->target, piece->source, piece->count); /* it was just cleared, so it is cached */
    } else {
      slip_copy(piece->target, piece->source, piece->count);
    }
  }
  return NULL;
}

/* Copies all pieces, which do not overlap, on up to so many threads; this one is the first. */
void slip_copy_all(const struct slip_piece* pieces, size_t count, unsigned threads) {
  struct work work = {pieces, count, 0};
  pthread_t helpers[MOST_THREADS];
  unsigned running = 0;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: signals are the program's threads' */
  while (running + 1 < threads && running < MOST_THREADS && running + 1 < count &&
         !pthread_create(&helpers[running], NULL, copy_some, &work)) {
    running++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  copy_some(&work);
  while (running) {
    pthread_join(helpers[--running], NULL);
  }
}
