/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml.so.1: the errors a driver reports (XIDs), as events. */
#include <stdlib.h>
#include <time.h>

#include "nvml_abi.h"
#include "nvml_node.h"

static const struct timespec POLL = {.tv_nsec = 10 * 1000 * 1000};

struct event_set {
  bool registered[SLIP_MAX_GPUS];
  uint64_t seen[SLIP_MAX_GPUS]; /* the number of the last XID delivered, or there at registration */
};

static uint64_t xid_count(const struct slip_gpu* gpu) {
  return __atomic_load_n(&gpu->xid_count, __ATOMIC_ACQUIRE);
}

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (!node_gpu_count()) return NVML_ERROR_UNINITIALIZED;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  *set = calloc(1, sizeof **set);
  return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  free(set);
  return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
                                                       unsigned long long* types) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!types) return NVML_ERROR_INVALID_ARGUMENT;
  *types = NVML_EVENT_XID_CRITICAL_ERROR;
  return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                               nvmlEventSet_t set) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  if (types != NVML_EVENT_XID_CRITICAL_ERROR) return NVML_ERROR_NOT_SUPPORTED;
  set->registered[device->index] = true;
  set->seen[device->index] = xid_count(gpu);
  return NVML_SUCCESS;
}

/* The next event nobody was told of, of any device in the set. */
static bool take_event(nvmlEventSet_t set, nvmlEventData_t* data) {
  for (unsigned index = 0; index < node_gpu_count(); index++) {
    const struct slip_gpu* gpu;
    nvmlDevice_t device;
    if (!set->registered[index]) continue;
    node_device(index, &device);
    node_gpu_even_if_lost(device, &gpu);
    uint64_t latest = xid_count(gpu);
    if (latest == set->seen[index]) continue;
    uint64_t oldest_kept = latest > SLIP_XIDS ? latest - SLIP_XIDS + 1 : 1;
    uint64_t number = set->seen[index] + 1 > oldest_kept ? set->seen[index] + 1 : oldest_kept;
    set->seen[index] = number;
    *data = (nvmlEventData_t){
        .device = device,
        .eventType = NVML_EVENT_XID_CRITICAL_ERROR,
        .eventData = gpu->xids[number % SLIP_XIDS],
        .gpuInstanceId = NVML_NO_INSTANCE,
        .computeInstanceId = NVML_NO_INSTANCE,
    };
    return true;
  }
  return false;
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data,
                                          unsigned timeout_ms) {
  if (!node_gpu_count()) return NVML_ERROR_UNINITIALIZED;
  if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
  uint64_t deadline = node_now_ns() + (uint64_t)timeout_ms * 1000000u;
  while (!take_event(set, data)) {
    if (node_now_ns() >= deadline) return NVML_ERROR_TIMEOUT;
    nanosleep(&POLL, NULL);
  }
  return NVML_SUCCESS;
}
NVML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t* data,
                                       unsigned timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}
