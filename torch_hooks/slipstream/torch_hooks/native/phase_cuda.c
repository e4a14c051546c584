/* SPDX-License-Identifier: Apache-2.0 */
/* An owner on CUDA waits before its device does: the queue is not empty when the CPU has nothing to
 * do. So the device itself opens the owner's word, when it has come to the end of what was queued.
 * A stream of our own waits for an event in the owner's and then calls us: the owner's stream is
 * not held up. owner_drain.py is the Python to it. Never run on a GPU. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../wire/owner_phase.h"
#include "cuda_calls.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void* beside; /* our stream, made at the first wait; it and the event stay */
static void* reached;
static int device;
/* The wait that is to be opened, and what its word says then. */
static struct slip_owner_phase* phase;
static uint64_t expected_until_ns;
static uintptr_t number;
static bool is_awaited;
static bool is_opened;

static bool went_well(int error) {
  if (error != SLIP_CUDA_SUCCESS) slip_cuda_calls()->last_error();
  return error == SLIP_CUDA_SUCCESS;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* By a thread of CUDA's, which must not call CUDA: the device is done. */
static void drained(void* data) {
  pthread_mutex_lock(&lock);
  if (is_awaited && number == (uintptr_t)data) {
    is_awaited = false;
    is_opened = true;
    phase->idle_from_ns = now_ns();
    phase->ends_ns = expected_until_ns;
    phase->waits++;
    __atomic_store_n(&phase->word, phase->word + 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &phase->word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
  }
  pthread_mutex_unlock(&lock);
}

static bool make_stream(void) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  int here = -1;
  if (!went_well(cuda->get_device(&here)) || (beside && here != device)) return false;
  device = here;
  return beside || (went_well(cuda->event_create(&reached, SLIP_CUDA_EVENT_WITHOUT_TIME)) &&
                    went_well(cuda->stream_create(&beside, SLIP_CUDA_STREAM_NON_BLOCKING)));
}

static bool ask(void* stream) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  int status = SLIP_CUDA_CAPTURE_NONE;
  return went_well(cuda->stream_is_capturing(stream, &status)) &&
         status == SLIP_CUDA_CAPTURE_NONE && make_stream() &&
         went_well(cuda->event_record(reached, stream)) &&
         went_well(cuda->stream_wait_event(beside, reached, 0)) &&
         went_well(cuda->launch_host_function(beside, drained, (void*)number));
}

/* Open the word when the stream has run dry, unless the wait is over by then. False: it cannot be
 * told when that is. */
bool slip_phase_open_when_drained(struct slip_owner_phase* word, void* stream, uint64_t until_ns) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  int mode = SLIP_CUDA_CAPTURE_RELAXED;
  if (!cuda || !went_well(cuda->exchange_capture_mode(&mode))) return false;
  pthread_mutex_lock(&lock);
  number++;
  phase = word;
  expected_until_ns = until_ns;
  is_awaited = true;
  is_opened = false;
  pthread_mutex_unlock(&lock);
  bool asked = ask(stream); /* without the lock: CUDA may wait for the thread that calls us */
  cuda->exchange_capture_mode(&mode);
  if (!asked) {
    pthread_mutex_lock(&lock);
    is_awaited = false;
    pthread_mutex_unlock(&lock);
  }
  return asked;
}

/* The wait is over. Returns whether its word was opened; from here on it is not touched. */
bool slip_phase_is_over(void) {
  pthread_mutex_lock(&lock);
  bool opened = is_opened;
  is_awaited = is_opened = false;
  pthread_mutex_unlock(&lock);
  return opened;
}
