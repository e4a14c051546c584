/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml.so.1: what is used of a device, by whom. All of it is computed from the queues'
 * history when asked: exact for the very window, no sampler runs. */
#include <string.h>

#include "nvml_abi.h"
#include "nvml_node.h"

#define NS_PER_S 1000000000ull
static const uint64_t RATES_WINDOW_NS = NS_PER_S;
static const uint64_t PCIE_WINDOW_NS = NS_PER_S / 50; /* 20 ms, as NVML documents */
static const uint64_t SAMPLE_NS = NS_PER_S / 10;
enum { MOST_SAMPLES = 50 };

static unsigned percent(uint64_t part_ns, uint64_t whole_ns) {
  return whole_ns ? (unsigned)((part_ns * 100 + whole_ns / 2) / whole_ns) : 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t used_bytes(const struct slip_gpu* gpu) {
  struct slip_process processes[SLIP_MAX_PROCESSES];
  uint64_t used = 0;
  node_processes(gpu, processes);
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) {
    if (processes[slot].pid) used += processes[slot].memory_bytes;
  }
  return used;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  memory->total = gpu->memory_bytes;
  memory->used = used_bytes(gpu);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != NVML_MEMORY_V2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlMemory_t found;
  nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &found);
  if (result != NVML_SUCCESS) return result;
  memory->total = found.total;
  memory->reserved = 0;
  memory->free = found.free;
  memory->used = found.used;
  return NVML_SUCCESS;
}

/* --- use of the whole device ------------------------------------------------------------------ */

static uint64_t busy_ns(const struct window* window, uint64_t from_ns, uint64_t to_ns) {
  uint64_t busy = 0;
  for (size_t at = 0; at < window->count; at++) {
    busy += entry_within_ns(&window->entries[at], from_ns, to_ns);
  }
  return busy;
}

static nvmlReturn_t engine_percent(const struct slip_gpu* gpu, int engine, unsigned* out) {
  struct window window;
  uint64_t now = node_now_ns();
  if (!window_open(gpu, engine, now - RATES_WINDOW_NS, now, &window)) return NVML_ERROR_MEMORY;
  *out = percent(busy_ns(&window, window.from_ns, now), now - window.from_ns);
  window_free(&window);
  return NVML_SUCCESS;
}

/* "memory" is the time in which the GPU's memory was read or written from outside: copies. */
NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* rates) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!rates) return NVML_ERROR_INVALID_ARGUMENT;
  result = engine_percent(gpu, SLIP_COMPUTE, &rates->gpu);
  return result == NVML_SUCCESS ? engine_percent(gpu, SLIP_COPY, &rates->memory) : result;
}

/* Samples lie on a fixed grid of the GPUs' clock, so that asking twice gives the same ones. */
static unsigned fill_samples(const struct window* window, uint64_t last_ns, unsigned count,
                             nvmlSample_t* samples) {
  for (unsigned at = 0; at < count; at++) {
    uint64_t to = last_ns - (count - 1 - at) * SAMPLE_NS;
    samples[at].timeStamp = node_wall_us(to);
    samples[at].sampleValue.ullVal = 0;
    samples[at].sampleValue.uiVal = percent(busy_ns(window, to - SAMPLE_NS, to), SAMPLE_NS);
  }
  return count;
}

NVML_API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type,
                                           unsigned long long last_seen_us, unsigned* value_type,
                                           unsigned* count, nvmlSample_t* samples) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!value_type || !count) return NVML_ERROR_INVALID_ARGUMENT;
  if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
  uint64_t last_ns = node_now_ns() / SAMPLE_NS * SAMPLE_NS;
  /* Half a sample of tolerance: the wall clock may have been slewed since the time stamp. */
  uint64_t seen_ns = node_from_wall_ns(last_seen_us) + SAMPLE_NS / 2;
  uint64_t fresh = last_ns > seen_ns ? (last_ns - seen_ns + SAMPLE_NS - 1) / SAMPLE_NS : 0;
  unsigned found = fresh < MOST_SAMPLES ? (unsigned)fresh : MOST_SAMPLES;
  if (!samples) {
    *count = found;
    return NVML_SUCCESS;
  }
  if (found == 0) return NVML_ERROR_NOT_FOUND;
  if (found > *count) found = *count;
  struct window window;
  int engine = type == NVML_GPU_UTILIZATION_SAMPLES ? SLIP_COMPUTE : SLIP_COPY;
  if (!window_open(gpu, engine, last_ns - found * SAMPLE_NS, last_ns, &window)) {
    return NVML_ERROR_MEMORY;
  }
  *count = fill_samples(&window, last_ns, found, samples);
  window_free(&window);
  return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter,
                                                  unsigned* kilobytes_per_s) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!kilobytes_per_s || counter > NVML_PCIE_UTIL_RX_BYTES) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned wanted = counter == NVML_PCIE_UTIL_TX_BYTES ? SLIP_TO_HOST : 0;
  struct window window;
  uint64_t now = node_now_ns(), copying_ns = 0;
  if (!window_open(gpu, SLIP_COPY, now - PCIE_WINDOW_NS, now, &window)) return NVML_ERROR_MEMORY;
  for (size_t at = 0; at < window.count; at++) {
    if ((window.entries[at].flags & SLIP_TO_HOST) == wanted) {
      copying_ns += entry_within_ns(&window.entries[at], window.from_ns, now);
    }
  }
  uint64_t kilobytes = gpu->copy_bytes_per_s / 1000;
  *kilobytes_per_s = (unsigned)(kilobytes * copying_ns / (now - window.from_ns));
  window_free(&window);
  return NVML_SUCCESS;
}

/* --- processes -------------------------------------------------------------------------------- */

/* NVML's way to return a list: too small a buffer, or none, is answered with the size needed. */
static nvmlReturn_t check_room(unsigned needed, unsigned* count, const void* buffer) {
  unsigned room = buffer ? *count : 0;
  *count = needed;
  return needed > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                              nvmlProcessInfo_v2_t* infos) {
  const struct slip_gpu* gpu;
  struct slip_process processes[SLIP_MAX_PROCESSES];
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  result = check_room(node_processes(gpu, processes), count, infos);
  if (result != NVML_SUCCESS) return result;
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) {
    if (!processes[slot].pid) continue;
    *infos++ = (nvmlProcessInfo_v2_t){processes[slot].pid, processes[slot].memory_bytes,
                                      NVML_NO_INSTANCE, NVML_NO_INSTANCE};
  }
  return NVML_SUCCESS;
}
NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                              nvmlProcessInfo_v2_t* infos) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

/* No process draws, none goes through MPS. */
NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                               nvmlProcessInfo_v2_t* infos) {
  (void)infos;
  return node_answer(device, 0, count);
}
NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                               nvmlProcessInfo_v2_t* infos) {
  (void)infos;
  return node_answer(device, 0, count);
}
NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                 unsigned* count,
                                                                 nvmlProcessInfo_v2_t* infos) {
  (void)infos;
  return node_answer(device, 0, count);
}

/* --- use by process --------------------------------------------------------------------------- */

struct use {
  struct slip_process process;
  uint64_t busy_ns[SLIP_ENGINES];
  uint64_t window_ns[SLIP_ENGINES];
};

static bool add_use(const struct slip_gpu* gpu, int engine, uint64_t from_ns, uint64_t to_ns,
                    struct use uses[]) {
  struct window window;
  if (!window_open(gpu, engine, from_ns, to_ns, &window)) return false;
  for (size_t at = 0; at < window.count; at++) {
    const struct slip_entry* entry = &window.entries[at];
    if (entry->slot >= SLIP_MAX_PROCESSES) continue;
    struct use* use = &uses[entry->slot];
    if (use->process.generation != entry->generation) continue; /* sat there before */
    use->busy_ns[engine] += entry_within_ns(entry, window.from_ns, to_ns);
  }
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) {
    uses[slot].window_ns[engine] = to_ns - window.from_ns;
  }
  window_free(&window);
  return true;
}

static bool use_within(const struct slip_gpu* gpu, uint64_t from_ns, uint64_t to_ns,
                       struct use uses[]) {
  struct slip_process processes[SLIP_MAX_PROCESSES];
  node_processes(gpu, processes);
  memset(uses, 0, SLIP_MAX_PROCESSES * sizeof *uses);
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) uses[slot].process = processes[slot];
  return add_use(gpu, SLIP_COMPUTE, from_ns, to_ns, uses) &&
         add_use(gpu, SLIP_COPY, from_ns, to_ns, uses);
}

static bool had_use(const struct use* use) {
  return use->process.pid && (use->busy_ns[SLIP_COMPUTE] || use->busy_ns[SLIP_COPY]);
}

/* Since the time stamp, or in the last second if it is 0 or older than what can be remembered. */
static nvmlReturn_t use_since(nvmlDevice_t device, uint64_t last_seen_us, uint64_t* now_us,
                              struct use uses[], unsigned* count) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  uint64_t now = node_now_ns(), from = node_from_wall_ns(last_seen_us);
  if (last_seen_us == 0) from = now - RATES_WINDOW_NS;
  if (from >= now) return NVML_ERROR_NOT_FOUND;
  if (!use_within(gpu, from, now, uses)) return NVML_ERROR_MEMORY;
  *now_us = node_wall_us(now);
  *count = 0;
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) *count += had_use(&uses[slot]);
  return *count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static unsigned use_percent(const struct use* use, int engine) {
  return percent(use->busy_ns[engine], use->window_ns[engine]);
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                      nvmlProcessUtilizationSample_t* samples,
                                                      unsigned* count,
                                                      unsigned long long last_seen_us) {
  struct use uses[SLIP_MAX_PROCESSES];
  unsigned found;
  uint64_t now_us;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t result = use_since(device, last_seen_us, &now_us, uses, &found);
  if (result == NVML_SUCCESS) result = check_room(found, count, samples);
  if (result != NVML_SUCCESS) return result;
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) {
    const struct use* use = &uses[slot];
    if (!had_use(use)) continue;
    *samples++ = (nvmlProcessUtilizationSample_t){
        .pid = use->process.pid,
        .timeStamp = now_us,
        .smUtil = use_percent(use, SLIP_COMPUTE),
        .memUtil = use_percent(use, SLIP_COPY),
    };
  }
  return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(
    nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t* info) {
  struct use uses[SLIP_MAX_PROCESSES];
  unsigned found;
  uint64_t now_us;
  if (!info) return NVML_ERROR_INVALID_ARGUMENT;
  if (info->version != NVML_PROCESSES_UTILIZATION_V1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlReturn_t result = use_since(device, info->lastSeenTimeStamp, &now_us, uses, &found);
  if (result == NVML_SUCCESS) {
    result = check_room(found, &info->processSamplesCount, info->procUtilArray);
  }
  if (result != NVML_SUCCESS) return result;
  nvmlProcessUtilizationInfo_v1_t* out = info->procUtilArray;
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) {
    const struct use* use = &uses[slot];
    if (!had_use(use)) continue;
    *out++ = (nvmlProcessUtilizationInfo_v1_t){
        .timeStamp = now_us,
        .pid = use->process.pid,
        .smUtil = use_percent(use, SLIP_COMPUTE),
        .memUtil = use_percent(use, SLIP_COPY),
    };
  }
  return NVML_SUCCESS;
}

/* --- accounting: living processes only, since they opened the device ---------------------------
 */

NVML_API nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned* mode) {
  return node_answer(device, 1, mode);
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned* size) {
  return node_answer(device, SLIP_MAX_PROCESSES, size);
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned* count,
                                                  unsigned* pids) {
  const struct slip_gpu* gpu;
  struct slip_process processes[SLIP_MAX_PROCESSES];
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  result = check_room(node_processes(gpu, processes), count, pids);
  for (unsigned slot = 0; result == NVML_SUCCESS && slot < SLIP_MAX_PROCESSES; slot++) {
    if (processes[slot].pid) *pids++ = processes[slot].pid;
  }
  return result;
}

/* Over the process's life; what it has queued but not run does not count yet. */
static unsigned life_percent(const struct use* to_come, int engine, uint64_t now_ns) {
  const struct slip_process* process = &to_come->process;
  uint64_t launched = process->launched_ns[engine] - process->base_ns[engine];
  uint64_t left = to_come->busy_ns[engine];
  return percent(launched > left ? launched - left : 0, now_ns - process->opened_at_ns);
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid,
                                                   nvmlAccountingStats_t* stats) {
  const struct slip_gpu* gpu;
  struct use to_come[SLIP_MAX_PROCESSES];
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!stats || !pid) return NVML_ERROR_INVALID_ARGUMENT;
  uint64_t now = node_now_ns();
  if (!use_within(gpu, now, UINT64_MAX, to_come)) return NVML_ERROR_MEMORY;
  for (unsigned slot = 0; slot < SLIP_MAX_PROCESSES; slot++) {
    const struct slip_process* process = &to_come[slot].process;
    if (process->pid != pid) continue;
    *stats = (nvmlAccountingStats_t){
        .gpuUtilization = life_percent(&to_come[slot], SLIP_COMPUTE, now),
        .memoryUtilization = life_percent(&to_come[slot], SLIP_COPY, now),
        .maxMemoryUsage = process->peak_memory_bytes,
        .startTime = node_wall_us(process->opened_at_ns),
        .isRunning = 1,
    };
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
