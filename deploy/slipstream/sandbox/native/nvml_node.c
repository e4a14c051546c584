/* SPDX-License-Identifier: Apache-2.0 */
#include "nvml_node.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { READ_TRIES = 200 }; /* then the writer died inside, and what is there is read as it is */

static struct {
  pthread_mutex_t mutex;
  unsigned users;
  const struct slip_header* header;
  const struct slip_gpu* gpus;
  size_t mapped_bytes;
  /* Opened once per path and never closed: closing it would drop the locks that this process may
   * hold through the occupancy GPU's own descriptor of the file. */
  int lock_fd;
  char lock_path[PATH_MAX];
} node = {.mutex = PTHREAD_MUTEX_INITIALIZER, .lock_fd = -1};

static struct device devices[SLIP_MAX_GPUS];

/* Deaths this library has seen but nobody with the right to write has cleared up yet: from then on
 * what the dead process had not started counts as dropped. */
static struct {
  uint32_t generation;
  uint64_t since_ns;
} deaths[SLIP_MAX_GPUS][SLIP_MAX_PROCESSES];
static pthread_mutex_t deaths_mutex = PTHREAD_MUTEX_INITIALIZER;

static nvmlReturn_t map_state(const char* path);
static nvmlReturn_t check_state(const struct slip_header* header, size_t bytes);
static nvmlReturn_t open_lock_file(const char* state_path);
static bool is_alive(unsigned gpu, unsigned slot, uint32_t generation);
static bool is_dead_before_start(unsigned gpu, const struct slip_entry* entry);

nvmlReturn_t node_open(void) {
  pthread_mutex_lock(&node.mutex);
  nvmlReturn_t result = NVML_SUCCESS;
  if (node.users == 0) {
    const char* path = getenv(SLIP_GPU_STATE_VARIABLE);
    result = path && *path ? open_lock_file(path) : NVML_ERROR_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS) result = map_state(path);
  }
  if (result == NVML_SUCCESS) node.users++;
  pthread_mutex_unlock(&node.mutex);
  return result;
}

nvmlReturn_t node_close(void) {
  pthread_mutex_lock(&node.mutex);
  nvmlReturn_t result = node.users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  if (node.users && --node.users == 0) {
    munmap((void*)node.header, node.mapped_bytes);
    node.header = NULL;
    node.gpus = NULL;
    memset(deaths, 0, sizeof deaths);
  }
  pthread_mutex_unlock(&node.mutex);
  return result;
}

unsigned node_gpu_count(void) { return node.header ? node.header->gpu_count : 0; }

nvmlReturn_t node_device(unsigned index, nvmlDevice_t* device) {
  if (!node.header) return NVML_ERROR_UNINITIALIZED;
  if (!device || index >= node_gpu_count()) return NVML_ERROR_INVALID_ARGUMENT;
  devices[index].index = index;
  *device = &devices[index];
  const struct slip_gpu* gpu;
  return node_gpu(*device, &gpu);
}

nvmlReturn_t node_gpu_even_if_lost(nvmlDevice_t device, const struct slip_gpu** gpu) {
  if (!node.header) return NVML_ERROR_UNINITIALIZED;
  for (unsigned index = 0; index < node_gpu_count(); index++) {
    if (device == &devices[index]) {
      *gpu = &node.gpus[index];
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t node_gpu(nvmlDevice_t device, const struct slip_gpu** gpu) {
  nvmlReturn_t result = node_gpu_even_if_lost(device, gpu);
  if (result != NVML_SUCCESS) return result;
  bool lost = __atomic_load_n(&(*gpu)->health, __ATOMIC_ACQUIRE) & 1;
  return lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t node_answer(nvmlDevice_t device, unsigned number, unsigned* out) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result == NVML_SUCCESS && !out) result = NVML_ERROR_INVALID_ARGUMENT;
  if (result == NVML_SUCCESS) *out = number;
  return result;
}

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t node_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

uint64_t node_wall_us(uint64_t at_ns) {
  return (clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC) + at_ns) / 1000;
}

uint64_t node_from_wall_ns(uint64_t wall_us) {
  uint64_t offset_ns = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
  uint64_t wall_ns = wall_us * 1000;
  return wall_ns > offset_ns ? wall_ns - offset_ns : 0;
}

unsigned node_processes(const struct slip_gpu* gpu, struct slip_process processes[]) {
  for (int tries = 0; tries < READ_TRIES; tries++) {
    uint64_t before = __atomic_load_n(&gpu->sequence, __ATOMIC_ACQUIRE);
    memcpy(processes, gpu->processes, sizeof gpu->processes);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint64_t after = __atomic_load_n(&gpu->sequence, __ATOMIC_RELAXED);
    if (before == after && !(before & 1)) break;
    sched_yield();
  }
  unsigned count = 0;
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) {
    struct slip_process* process = &processes[slot];
    if (process->pid && !is_alive((unsigned)(gpu - node.gpus), slot, process->generation)) {
      process->pid = 0;
    }
    count += process->pid != 0;
  }
  return count;
}

static uint64_t end_ns(const struct slip_entry* entry) {
  return entry->start_ns + (entry->flags & SLIP_DROPPED ? 0 : entry->duration_ns);
}

uint64_t entry_within_ns(const struct slip_entry* entry, uint64_t from_ns, uint64_t to_ns) {
  uint64_t start = entry->start_ns > from_ns ? entry->start_ns : from_ns;
  uint64_t end = end_ns(entry) < to_ns ? end_ns(entry) : to_ns;
  return end > start ? end - start : 0;
}

/* Copy what lies in the window, newest first, back to the first entry that ended before it. */
static void copy_window(const struct slip_engine* engine, struct window* window) {
  uint64_t asked_ns = window->from_ns;
  uint64_t tail = __atomic_load_n(&engine->tail, __ATOMIC_ACQUIRE);
  window->count = 0;
  for (uint64_t number = tail; number > 0; number--) {
    const struct slip_entry* shared = &engine->entries[number % SLIP_RING];
    struct slip_entry* entry = &window->entries[window->count];
    memcpy(entry, shared, sizeof *entry);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&shared->sequence, __ATOMIC_RELAXED) != number) {
      /* Overwritten: the ring reaches back only to the start of the entry after this one. */
      if (window->count) window->from_ns = window->entries[window->count - 1].start_ns;
      return;
    }
    if (end_ns(entry) <= asked_ns) return;
    if (entry->start_ns < window->to_ns) window->count++;
  }
}

bool window_open(const struct slip_gpu* gpu, int engine_index, uint64_t from_ns, uint64_t to_ns,
                 struct window* window) {
  const struct slip_engine* engine = &gpu->engines[engine_index];
  window->entries = malloc((SLIP_RING + 1) * sizeof *window->entries);
  if (!window->entries) return false; /* one more: to see that the ring ends, one looks beyond */
  window->to_ns = to_ns;
  for (int tries = 0; tries < READ_TRIES; tries++) {
    uint64_t before = __atomic_load_n(&engine->moves, __ATOMIC_ACQUIRE);
    window->from_ns = from_ns;
    copy_window(engine, window);
    if (before == __atomic_load_n(&engine->moves, __ATOMIC_RELAXED) && !(before & 1)) break;
    sched_yield();
  }
  struct slip_process processes[SLIP_MAX_PROCESSES];
  node_processes(gpu, processes); /* notes deaths */
  for (size_t at = 0; at < window->count; at++) {
    if (is_dead_before_start((unsigned)(gpu - node.gpus), &window->entries[at])) {
      window->entries[at].flags |= SLIP_DROPPED;
    }
  }
  return true;
}

void window_free(struct window* window) { free(window->entries); }

static nvmlReturn_t map_state(const char* path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  struct stat status;
  void* mapped = MAP_FAILED;
  if (fstat(fd, &status) == 0 && status.st_size >= SLIP_HEADER_BYTES) {
    mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (mapped == MAP_FAILED) return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
  nvmlReturn_t result = check_state(mapped, (size_t)status.st_size);
  if (result != NVML_SUCCESS) {
    munmap(mapped, (size_t)status.st_size);
    return result;
  }
  node.mapped_bytes = (size_t)status.st_size;
  node.gpus = (const struct slip_gpu*)((const char*)mapped + SLIP_HEADER_BYTES);
  node.header = mapped;
  return NVML_SUCCESS;
}

/* A file of another layout is to us what another version of the driver is to NVML. */
static nvmlReturn_t check_state(const struct slip_header* header, size_t bytes) {
  bool ours = memcmp(header->magic, SLIP_MAGIC, sizeof header->magic) == 0 &&
              header->version == SLIP_VERSION && header->gpu_bytes == sizeof(struct slip_gpu) &&
              header->gpu_count >= 1 && header->gpu_count <= SLIP_MAX_GPUS &&
              header->file_bytes == bytes &&
              bytes == SLIP_HEADER_BYTES + header->gpu_count * sizeof(struct slip_gpu);
  return ours ? NVML_SUCCESS : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

static nvmlReturn_t open_lock_file(const char* state_path) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s%s", state_path, SLIP_LOCK_SUFFIX);
  if (length < 0 || (size_t)length >= sizeof path) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (node.lock_fd >= 0 && strcmp(path, node.lock_path) == 0) {
    struct stat there, open_one;
    if (stat(path, &there) == 0 && fstat(node.lock_fd, &open_one) == 0 &&
        there.st_ino == open_one.st_ino && there.st_dev == open_one.st_dev) {
      return NVML_SUCCESS;
    }
  }
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  node.lock_fd = fd;
  strcpy(node.lock_path, path);
  return NVML_SUCCESS;
}

/* Whether the process in this place still holds the byte it took when it sat down. */
static bool is_alive(unsigned gpu, unsigned slot, uint32_t generation) {
  struct flock question = {
      .l_type = F_WRLCK,
      .l_whence = SEEK_SET,
      .l_start = SLIP_LIFE_OFFSET + (off_t)gpu * SLIP_MAX_PROCESSES + slot,
      .l_len = 1,
  };
  /* F_GETLK would not report locks of the calling process itself; this form does. */
  bool alive = fcntl(node.lock_fd, F_OFD_GETLK, &question) != 0 || question.l_type != F_UNLCK;
  if (!alive) {
    pthread_mutex_lock(&deaths_mutex);
    if (deaths[gpu][slot].generation != generation) {
      deaths[gpu][slot].generation = generation;
      deaths[gpu][slot].since_ns = node_now_ns();
    }
    pthread_mutex_unlock(&deaths_mutex);
  }
  return alive;
}

static bool is_dead_before_start(unsigned gpu, const struct slip_entry* entry) {
  if (entry->slot >= SLIP_MAX_PROCESSES) return false;
  pthread_mutex_lock(&deaths_mutex);
  bool dead = deaths[gpu][entry->slot].generation == entry->generation &&
              entry->start_ns > deaths[gpu][entry->slot].since_ns;
  pthread_mutex_unlock(&deaths_mutex);
  return dead;
}
