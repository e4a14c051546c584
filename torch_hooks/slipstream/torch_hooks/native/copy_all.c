/* SPDX-License-Identifier: Apache-2.0 */
/* Many copies at once, on several processors, and memory that is new on huge pages.
 *
 * The kernel has to clear new memory before it is given to anybody: that is as much work as the
 * copy, and more than it where pages are small. Threads of ours do both, so that one clears while
 * another copies. They run no Python and take no signals, and are gone when this returns. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "copy.h"

enum { MOST_THREADS = 16, HUGE_PAGE_BYTES = 2 << 20, PAGE_BYTES = 4096 };
enum { CHECKED_AT_ONCE = 10 * 3 * 8192 }; /* whole lanes of the checksum, well within the caches */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; elsewhere an error, which changes nothing */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

struct work {
  void (*one)(void* all, size_t at);
  void* all;
  size_t count;
  size_t next;
};

static void* work_on(void* given) {
  struct work* work = given;
  size_t at;
  while ((at = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->count) {
    work->one(work->all, at);
  }
  return NULL;
}

static void in_threads(struct work work, unsigned threads) {
  pthread_t helpers[MOST_THREADS];
  unsigned running = 0;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: signals are the program's threads' */
  while (running + 1 < threads && running + 1 < work.count && running < MOST_THREADS &&
         !pthread_create(&helpers[running], NULL, work_on, &work)) {
    running++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  work_on(&work);
  while (running) {
    pthread_join(helpers[--running], NULL);
  }
}

/* malloc has written its heads into it: without this it would be 512 small pages. */
static void have_page(const struct slip_piece* piece) {
  if (piece->fresh_page) {
    madvise(piece->fresh_page, HUGE_PAGE_BYTES, MADV_COLLAPSE);
  }
}

static void copy_one(void* all, size_t at) {
  const struct slip_piece* piece = (const struct slip_piece*)all + at;
  have_page(piece);
  if (piece->fresh_page) {
    memcpy(piece->target, piece->source, piece->count); /* just cleared: it is in the caches */
  } else {
    slip_copy(piece->target, piece->source, piece->count);
  }
}

void slip_copy_all(const struct slip_piece* pieces, size_t count, unsigned threads) {
  in_threads((struct work){copy_one, (void*)pieces, count, 0}, threads);
}

/* Read once: the copy finds in the caches what the checksum has read. */
static uint32_t check_and_copy(uint32_t checksum, const struct slip_piece* piece) {
  have_page(piece);
  for (size_t at = 0; at < piece->count; at += CHECKED_AT_ONCE) {
    size_t rest = piece->count - at;
    size_t count = rest < CHECKED_AT_ONCE ? rest : CHECKED_AT_ONCE;
    const uint8_t* source = (const uint8_t*)piece->source + at;
    checksum = slip_crc32c(checksum, source, count);
    memcpy((uint8_t*)piece->target + at, source, count);
  }
  return checksum;
}

static void check_one(void* all, size_t at) {
  struct slip_checked* one = (struct slip_checked*)all + at;
  const uint8_t* from = one->begin;
  const uint8_t* end = from + one->count;
  uintptr_t first = (uintptr_t)from / PAGE_BYTES * PAGE_BYTES;
  madvise((void*)first, (size_t)((uintptr_t)end - first), MADV_POPULATE_READ);
  uint32_t checksum = 0;
  for (size_t number = 0; number < one->piece_count; number++) {
    const struct slip_piece* piece = &one->pieces[number];
    const uint8_t* source = piece->source;
    checksum = slip_crc32c(checksum, from, (size_t)(source - from));
    checksum = check_and_copy(checksum, piece);
    from = source + piece->count;
  }
  one->checksum = slip_crc32c(checksum, from, (size_t)(end - from));
}

void slip_check_all(struct slip_checked* all, size_t count, unsigned threads) {
  in_threads((struct work){check_one, all, count, 0}, threads);
}
