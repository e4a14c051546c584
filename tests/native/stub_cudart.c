/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime without CUDA, for tests: memory of devices is memory of this process, and has a
 * capacity that refuses. Set when it is loaded: STUB_CUDA_CAPACITY and STUB_CUDA_HOST_CAPACITY in
 * bytes, STUB_CUDA_VERSION (12040; from 13000 on places are structures), STUB_CUDA_WITHOUT=prefetch
 * or advise for one that does not do that. Managed memory counts where it was last brought. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_MEMORY = 2, NOT_SUPPORTED = 801, DEVICES = 4, HOST = -1 };

struct piece {
  void* begin;
  uint64_t bytes;
  bool managed;
  int place; /* a device, or HOST */
  int preferred;
  int accessed_by;
  struct piece* next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct piece* pieces;
static uint64_t capacity, host_capacity, used[DEVICES], host_used, most[DEVICES];
static uint64_t wrong_frees;
static int version;
static bool no_prefetch, no_advice;
static _Thread_local int current, last_error;

static uint64_t number(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text ? strtoull(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
  const char* without = getenv("STUB_CUDA_WITHOUT");
  capacity = number("STUB_CUDA_CAPACITY", 0);
  host_capacity = number("STUB_CUDA_HOST_CAPACITY", UINT64_MAX);
  version = (int)number("STUB_CUDA_VERSION", 12040);
  no_prefetch = without && strcmp(without, "prefetch") == 0;
  no_advice = without && strcmp(without, "advise") == 0;
}

static int told(int error) {
  if (error) last_error = error;
  return error;
}

static int take(void** out, uint64_t bytes, bool managed) {
  int error = NO_MEMORY;
  pthread_mutex_lock(&lock);
  uint64_t free_bytes = managed ? host_capacity - host_used : capacity - used[current];
  void* begin = bytes <= free_bytes ? malloc(bytes) : NULL;
  struct piece* one = begin ? malloc(sizeof *one) : NULL;
  if (one) {
    *one = (struct piece){.begin = begin,
                          .bytes = bytes,
                          .managed = managed,
                          .place = managed ? HOST : current,
                          .preferred = -2,
                          .accessed_by = -2,
                          .next = pieces};
    pieces = one;
    if (managed) {
      host_used += bytes;
    } else {
      used[current] += bytes;
      if (used[current] > most[current]) most[current] = used[current];
    }
    *out = begin;
    error = SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return told(error);
}

int cudaRuntimeGetVersion(int* out) { return *out = version, SUCCESS; }
int cudaGetDevice(int* out) { return *out = current, SUCCESS; }
int cudaSetDevice(int device) {
  if (device < 0 || device >= DEVICES) return told(INVALID_VALUE);
  return current = device, SUCCESS;
}
int cudaGetLastError(void) {
  int error = last_error;
  return last_error = SUCCESS, error;
}
int cudaMalloc(void** out, size_t bytes) { return take(out, bytes, false); }
int cudaMallocManaged(void** out, size_t bytes, unsigned flags) {
  return flags == 1 ? take(out, bytes, true) : told(INVALID_VALUE);
}

int cudaFree(void* begin) {
  int error = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (struct piece** at = &pieces; *at; at = &(*at)->next) {
    struct piece* one = *at;
    if (one->begin != begin) continue;
    if (one->place == HOST) {
      host_used -= one->bytes;
    } else {
      used[one->place] -= one->bytes;
    }
    *at = one->next;
    free(one->begin);
    free(one);
    error = SUCCESS;
    break;
  }
  if (error) ++wrong_frees;
  pthread_mutex_unlock(&lock);
  return told(error);
}

/* An int and a structure of two come in the same register: a device, or a kind and a device. */
static int place_of(uint64_t raw) {
  int first = (int)(uint32_t)raw, second = (int)(uint32_t)(raw >> 32);
  if (version < 13000) return first;
  return first == 2 ? HOST : first == 1 ? second : -3;
}

static struct piece* piece_at(const void* begin, size_t bytes) {
  for (struct piece* one = pieces; one; one = one->next) {
    if (one->begin == begin && one->bytes == bytes && one->managed) return one;
  }
  return NULL;
}

int cudaMemAdvise(const void* begin, size_t bytes, int advice, uint64_t where) {
  if (no_advice) return told(NOT_SUPPORTED);
  pthread_mutex_lock(&lock);
  struct piece* one = piece_at(begin, bytes);
  if (one && advice == 3) one->preferred = place_of(where);
  if (one && advice == 5) one->accessed_by = place_of(where);
  pthread_mutex_unlock(&lock);
  return told(one && place_of(where) >= HOST ? SUCCESS : INVALID_VALUE);
}

static int bring(const void* begin, size_t bytes, int place) {
  if (no_prefetch || place < HOST || place >= DEVICES) return told(NOT_SUPPORTED);
  int error = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  struct piece* one = piece_at(begin, bytes);
  if (one) {
    *(one->place == HOST ? &host_used : &used[one->place]) -= bytes;
    *(place == HOST ? &host_used : &used[place]) += bytes;
    if (place != HOST && used[place] > most[place]) most[place] = used[place];
    one->place = place;
    error = SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return told(error);
}

/* Before 13: (where, stream). From 13 on: (where, flags, stream). */
int cudaMemPrefetchAsync(const void* begin, size_t bytes, uint64_t where, uint64_t fourth) {
  if (version >= 13000 && (uint32_t)fourth != 0) return told(INVALID_VALUE);
  return bring(begin, bytes, place_of(where));
}

/* --- a device with one queue, in which kernels of known length run one after the other
 * ----------*/

enum { NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, RELAXED = 2 };

struct event {
  uint64_t done_ns; /* 0: never recorded */
};

struct host_function {
  uint64_t at_ns;
  void (*function)(void*);
  void* data;
};

static uint64_t free_from_ns, busy_ns, forbidden, events;
static int capturing, refuses_events;
static _Thread_local int capture_mode;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t drained_ns(void) {
  uint64_t now = now_ns();
  return free_from_ns > now ? free_from_ns : now;
}

/* While something is captured, only who says that it knows what it does may call. */
static int allowed(void) {
  if (!capturing || capture_mode == RELAXED) return SUCCESS;
  forbidden++;
  return CAPTURE_UNSUPPORTED;
}

int cudaEventCreateWithFlags(struct event** out, unsigned flags) {
  if (flags & ~2u || refuses_events) return told(INVALID_VALUE);
  *out = calloc(1, sizeof **out);
  __atomic_add_fetch(&events, 1, __ATOMIC_RELAXED);
  return *out ? SUCCESS : told(NO_MEMORY);
}

int cudaEventDestroy(struct event* event) {
  __atomic_sub_fetch(&events, 1, __ATOMIC_RELAXED);
  free(event);
  return SUCCESS;
}

int cudaEventRecord(struct event* event, void* stream) {
  (void)stream;
  if (!event || refuses_events) return told(INVALID_VALUE);
  pthread_mutex_lock(&lock);
  event->done_ns = drained_ns();
  pthread_mutex_unlock(&lock);
  return told(allowed());
}

int cudaEventQuery(struct event* event) {
  if (!event || allowed()) return told(event ? CAPTURE_UNSUPPORTED : INVALID_VALUE);
  return event->done_ns <= now_ns() ? SUCCESS : told(NOT_READY);
}

int cudaEventElapsedTime(float* ms, const struct event* begin, const struct event* end) {
  if (!begin->done_ns || !end->done_ns) return told(INVALID_VALUE);
  if (begin->done_ns > now_ns() || end->done_ns > now_ns()) return told(NOT_READY);
  *ms = (float)((double)(int64_t)(end->done_ns - begin->done_ns) / 1e6);
  return SUCCESS;
}

/* One stream beside the program's, which has nothing to do but to wait. */
static uint64_t beside_waits_until_ns;

int cudaStreamCreateWithFlags(void** out, unsigned flags) {
  if (flags != 1 || refuses_events) return told(INVALID_VALUE);
  return *out = &beside_waits_until_ns, SUCCESS;
}

int cudaStreamWaitEvent(void* stream, const struct event* event, unsigned flags) {
  if (stream != &beside_waits_until_ns || flags) return told(INVALID_VALUE);
  return beside_waits_until_ns = event->done_ns, SUCCESS;
}

int cudaStreamIsCapturing(void* stream, int* status) {
  *status = capturing && stream == NULL;
  return SUCCESS;
}

int cudaThreadExchangeStreamCaptureMode(int* mode) {
  int before = capture_mode;
  capture_mode = *mode;
  return *mode = before, SUCCESS;
}

static void* call_later(void* data) {
  struct host_function* one = data;
  struct timespec until = {.tv_sec = (time_t)(one->at_ns / 1000000000u),
                           .tv_nsec = (long)(one->at_ns % 1000000000u)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
  one->function(one->data);
  free(one);
  return NULL;
}

/* Called by a thread of the driver's when all before it is done. */
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  struct host_function* one = malloc(sizeof *one);
  if (!one || stream != &beside_waits_until_ns) return free(one), told(INVALID_VALUE);
  *one = (struct host_function){.at_ns = beside_waits_until_ns, .function = function, .data = data};
  pthread_t thread;
  if (pthread_create(&thread, NULL, call_later, one)) return free(one), told(INVALID_VALUE);
  pthread_detach(thread);
  return SUCCESS;
}

/* A kernel of this length is queued. */
void stub_launch(uint64_t duration_ns) {
  pthread_mutex_lock(&lock);
  free_from_ns = drained_ns() + duration_ns;
  busy_ns += duration_ns;
  pthread_mutex_unlock(&lock);
}

uint64_t stub_busy_ns(void) { return busy_ns; }
uint64_t stub_drained_ns(void) { return drained_ns(); }
uint64_t stub_events(void) { return events; }
uint64_t stub_forbidden(void) { return forbidden; }
void stub_capture(int on) { capturing = on; }
void stub_refuse_events(int on) { refuses_events = on; }

/* --- for tests ---------------------------------------------------------------------------------*/

uint64_t stub_used(int device) { return device == HOST ? host_used : used[device]; }
uint64_t stub_most(int device) { return most[device]; }
uint64_t stub_wrong_frees(void) { return wrong_frees; }
int stub_preferred(const void* begin) {
  for (struct piece* one = pieces; one; one = one->next) {
    if (one->begin == begin) return one->preferred;
  }
  return -4;
}
int stub_accessed_by(const void* begin) {
  for (struct piece* one = pieces; one; one = one->next) {
    if (one->begin == begin) return one->accessed_by;
  }
  return -4;
}
