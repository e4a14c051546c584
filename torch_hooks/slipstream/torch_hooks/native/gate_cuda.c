/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on CUDA come back before the device has begun with them, and only the device knows how
 * long they take. So they pass the gate in batches of some 0.2 ms of device time, with an event
 * before and one after each; a guest is never more than two batches, or one operator that is
 * longer, ahead of its device. What the events say is charged to the share and learned: an operator
 * that nobody knows is a batch of its own. Whatever goes wrong opens the gate for good, and Python
 * pauses at boundaries instead.
 *
 * Never run on a GPU. Not seen: work on other streams than the one that is current at boundaries,
 * and on further GPUs of the process. Graphs replay without operators: who has captured one is kept
 * to its share at boundaries. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "cuda_calls.h"
#include "gate.h"

enum { MOST = 64, DEPTH = 2, RING = DEPTH + 1 };

static const uint64_t BATCH_NS = SLIP_MS / 5;
static const uint64_t GAP_NS = SLIP_MS / 10; /* between two operators: the device may have idled */
static const uint64_t LEAST_NS = 1000;
static const uint64_t LOOK_EVERY_NS = SLIP_MS / 10; /* at first; later at a sixteenth more time */
static const uint64_t LOOK_AT_LEAST_EVERY_NS = SLIP_MS;
static const uint64_t PATIENCE_NS = 5000 * (uint64_t)SLIP_MS;

struct batch {
  void* begin;
  void* end;
  bool has_end;
  uint64_t launched_ns;
  uint64_t last_ns; /* when the last operator was begun or was done by the CPU */
  uint64_t expected_ns;
  unsigned count;
  struct {
    struct slip_estimate* estimate;
    uint64_t key;
    uint64_t expected_ns;
  } operators[MOST];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* never held while somebody waits */
static atomic_bool is_open;
static const char* _Atomic problem;
static void* stream;
static int device;
static struct batch ring[RING];
static unsigned oldest, queued;
static struct batch* running;
static uint64_t measured_until_ns; /* when the device was done with what was measured */

static bool is_well(void) { return is_open && !problem; }

static bool went_well(int error, const char* what) {
  if (error == SLIP_CUDA_SUCCESS) return true;
  slip_cuda_calls()->last_error(); /* whoever calls CUDA next must not find it */
  problem = what;
  return false;
}

/* A capture forbids calls that have nothing to do with it, also to us, unless we say that we know
 * what we do. Returns whether there is something to measure here; to be undone by leave(). */
static bool enter(int* mode) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  int here = -1, status = SLIP_CUDA_CAPTURE_NONE;
  *mode = -1;
  if (!is_well() || cuda->get_device(&here) || here != device) return false;
  *mode = SLIP_CUDA_CAPTURE_RELAXED;
  if (!went_well(cuda->exchange_capture_mode(mode), "cudaThreadExchangeStreamCaptureMode")) {
    *mode = -1;
    return false;
  }
  if (cuda->stream_is_capturing(stream, &status)) {
    cuda->last_error();
    return false;
  }
  return status == SLIP_CUDA_CAPTURE_NONE;
}

static void leave(int mode) {
  if (mode >= 0) slip_cuda_calls()->exchange_capture_mode(&mode);
}

static uint64_t expected_of_queue_ns(void) {
  uint64_t sum_ns = running ? running->expected_ns : 0;
  for (unsigned at = 0; at < queued; at++) sum_ns += ring[(oldest + at) % RING].expected_ns;
  return sum_ns;
}

/* In the proportions that were expected. */
static void learn(const struct batch* batch, uint64_t device_ns) {
  for (unsigned at = 0; at < batch->count; at++) {
    uint64_t part_ns = device_ns * batch->operators[at].expected_ns / batch->expected_ns;
    slip_estimate_learn(batch->operators[at].estimate, batch->operators[at].key, part_ns);
  }
}

/* Charge what the device has done; says whether there is room for one more batch. */
static bool collect(void) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  while (queued) {
    struct batch* batch = &ring[oldest];
    float ms = 0;
    int error = cuda->event_query(batch->end);
    if (error == SLIP_CUDA_NOT_READY) {
      cuda->last_error();
      break;
    }
    if (!went_well(error, "cudaEventQuery") ||
        !went_well(cuda->event_elapsed(&ms, batch->begin, batch->end), "cudaEventElapsedTime")) {
      return true;
    }
    uint64_t device_ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0, now_ns = slip_now_ns();
    uint64_t from_ns =
        batch->launched_ns > measured_until_ns ? batch->launched_ns : measured_until_ns;
    measured_until_ns = from_ns + device_ns < now_ns ? from_ns + device_ns : now_ns;
    learn(batch, device_ns);
    oldest = (oldest + 1) % RING;
    queued--;
    slip_gate_charge(device_ns, measured_until_ns + expected_of_queue_ns());
  }
  return queued == 0 || (queued < DEPTH && expected_of_queue_ns() <= DEPTH * BATCH_NS);
}

static void end_batch(void) {
  if (!running->has_end &&
      !went_well(slip_cuda_calls()->event_record(running->end, stream), "cudaEventRecord")) {
    return;
  }
  running = NULL;
  queued++;
}

static void begin_batch(uint64_t now_ns) {
  running = &ring[(oldest + queued) % RING];
  running->launched_ns = now_ns;
  running->expected_ns = 0;
  running->count = 0;
  went_well(slip_cuda_calls()->event_record(running->begin, stream), "cudaEventRecord");
}

static void add(struct slip_estimate* estimate, uint64_t expected_ns, uint64_t now_ns) {
  running->has_end = false; /* it is not done before slip_cuda_gate_after */
  running->operators[running->count].estimate = estimate;
  running->operators[running->count].key = estimate->key;
  running->operators[running->count].expected_ns = expected_ns;
  running->count++;
  running->expected_ns += expected_ns;
  running->last_ns = now_ns;
}

/* Until the device has come so far that one more batch may be queued. A device that stands still
 * waits for something that we may hold up: after a while its work is not measured any more. */
static void wait_for_room(void) {
  uint64_t began_ns = slip_now_ns();
  while (is_well() && !collect()) {
    uint64_t waited_ns = slip_now_ns() - began_ns, pause_ns = waited_ns / 16;
    if (waited_ns > PATIENCE_NS) {
      queued = 0;
      return;
    }
    if (pause_ns < LOOK_EVERY_NS) pause_ns = LOOK_EVERY_NS;
    if (pause_ns > LOOK_AT_LEAST_EVERY_NS) pause_ns = LOOK_AT_LEAST_EVERY_NS;
    struct timespec pause = {.tv_nsec = (long)pause_ns};
    pthread_mutex_unlock(&lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&lock);
  }
}

static bool fits(uint64_t expected_ns, uint64_t now_ns) {
  return running && running->count < MOST && running->expected_ns + expected_ns <= BATCH_NS &&
         now_ns - running->last_ns <= GAP_NS;
}

/* Wait until a batch may be begun that begins with such an operator. Without the lock, so that
 * afterwards another thread may have begun one, or the gate may be gone. */
static void wait_for_leave(uint64_t expected_ns) {
  wait_for_room();
  uint64_t ready_ns = slip_now_ns() + expected_of_queue_ns();
  pthread_mutex_unlock(&lock);
  slip_gate_admit(ready_ns, expected_ns > BATCH_NS ? expected_ns : BATCH_NS);
  pthread_mutex_lock(&lock);
}

static void pass(struct slip_estimate* estimate) {
  uint64_t expected_ns = estimate->seen ? estimate->duration_ns : BATCH_NS;
  if (expected_ns < LEAST_NS) expected_ns = LEAST_NS;
  if (running && !fits(expected_ns, slip_now_ns())) end_batch();
  if (!running) wait_for_leave(expected_ns);
  uint64_t now_ns = slip_now_ns();
  if (is_well() && running && !fits(expected_ns, now_ns)) end_batch();
  if (!is_well()) return;
  if (!running) {
    collect();
    if (queued == RING) queued--; /* by many threads: the youngest is not measured */
    begin_batch(now_ns);
  }
  add(estimate, expected_ns, now_ns);
  slip_gate_charge(0, now_ns + expected_of_queue_ns());
}

/* Before each operator. */
void slip_cuda_gate_before(uint64_t name_hash) {
  int mode;
  if (enter(&mode)) {
    slip_gate()->operators++;
    pthread_mutex_lock(&lock);
    if (is_well()) pass(slip_estimate(name_hash));
    pthread_mutex_unlock(&lock);
  }
  leave(mode);
}

/* After each operator, as far as the CPU is concerned. */
void slip_cuda_gate_after(void) {
  int mode;
  if (enter(&mode)) {
    pthread_mutex_lock(&lock);
    if (is_well() && running) {
      running->has_end =
          went_well(slip_cuda_calls()->event_record(running->end, stream), "cudaEventRecord");
      running->last_ns = slip_now_ns();
    }
    pthread_mutex_unlock(&lock);
  }
  leave(mode);
}

/* A mini-batch has ended; from here on this stream is the one that counts. */
void slip_cuda_gate_boundary(void* now_current) {
  int mode;
  bool here = enter(&mode);
  pthread_mutex_lock(&lock);
  if (here && is_well()) {
    if (running) end_batch();
    collect();
  }
  stream = now_current;
  pthread_mutex_unlock(&lock);
  leave(mode);
}

static bool make_events(void) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  for (unsigned at = 0; at < RING; at++) {
    if (!went_well(cuda->event_create(&ring[at].begin, SLIP_CUDA_EVENT_DEFAULT), "cudaEventCreate"))
      return false;
    if (!went_well(cuda->event_create(&ring[at].end, SLIP_CUDA_EVENT_DEFAULT), "cudaEventCreate"))
      return false;
  }
  return true;
}

/* For operators on this thread's device. Null, or what CUDA refused: then it is closed again. */
const char* slip_cuda_gate_open(void* now_current) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  if (!cuda) return "CUDA's runtime";
  slip_cuda_gate_close();
  problem = NULL;
  stream = now_current;
  measured_until_ns = 0;
  if (!went_well(cuda->get_device(&device), "cudaGetDevice") || !make_events()) {
    slip_cuda_gate_close();
    return problem;
  }
  is_open = true;
  return NULL;
}

void slip_cuda_gate_close(void) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  is_open = false;
  pthread_mutex_lock(&lock);
  for (unsigned at = 0; cuda && at < RING; at++) {
    if (ring[at].begin) cuda->event_destroy(ring[at].begin);
    if (ring[at].end) cuda->event_destroy(ring[at].end);
  }
  memset(ring, 0, sizeof ring);
  running = NULL;
  oldest = queued = 0;
  pthread_mutex_unlock(&lock);
}

bool slip_cuda_gate_is_open(void) { return atomic_load_explicit(&is_open, memory_order_relaxed); }

/* What CUDA refused while operators ran, or null. */
const char* slip_cuda_gate_problem(void) { return problem; }
