/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml.so.1 over the sandbox's simulated GPUs: starting it, and who the devices are.
 *
 * It serves unmodified callers (pynvml and what is built on it) on machines without a GPU. What a
 * simulated GPU has not (temperature, power, clocks, …) is NVML_ERROR_NOT_SUPPORTED, never made up.
 * It reads only: nothing a monitor does can disturb a training. */
#include <stdio.h>
#include <string.h>

#include "nvml_abi.h"
#include "nvml_node.h"

static const char DRIVER_VERSION[] = "580.0.0";
static const char LIBRARY_VERSION[] = "13.580.0.0";
enum { CUDA_VERSION = 13000, PCI_VENDOR = 0x10DE };

static nvmlReturn_t put_text(const char* text, char* out, unsigned size) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (strlen(text) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(out, text);
  return NVML_SUCCESS;
}

/* --- the library ------------------------------------------------------------------------------ */

NVML_API nvmlReturn_t nvmlInit(void) { return node_open(); }
NVML_API nvmlReturn_t nvmlInit_v2(void) { return node_open(); }
NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
  (void)flags; /* they only say what may be missing; here nothing is */
  return node_open();
}
NVML_API nvmlReturn_t nvmlShutdown(void) { return node_close(); }

NVML_API const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded (" SLIP_GPU_STATE_VARIABLE " names no simulated GPUs)";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return "Driver/library version mismatch";
    case NVML_ERROR_MEMORY:
      return "Insufficient Memory";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument Version Mismatch";
    default:
      return "Unknown Error";
  }
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned size) {
  return node_gpu_count() ? put_text(DRIVER_VERSION, version, size) : NVML_ERROR_UNINITIALIZED;
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned size) {
  return put_text(LIBRARY_VERSION, version, size);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  *version = CUDA_VERSION;
  return NVML_SUCCESS;
}
NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char* name, unsigned size) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE* file = fopen(path, "re");
  if (!file) return NVML_ERROR_NOT_FOUND;
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = '\0'; /* the arguments are separated by zeros: this is the first one */
  return put_text(text, name, size);
}

/* --- finding devices -------------------------------------------------------------------------- */

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  if (!node_gpu_count()) return NVML_ERROR_UNINITIALIZED;
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  *count = node_gpu_count();
  return NVML_SUCCESS;
}
NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  return node_device(index, device);
}
NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return node_device(index, device);
}

static unsigned bus_number(unsigned index) { return index + 1; }

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (!node_gpu_count()) return NVML_ERROR_UNINITIALIZED;
  if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned index = 0; index < node_gpu_count(); index++) {
    const struct slip_gpu* gpu;
    nvmlReturn_t result = node_device(index, device);
    node_gpu_even_if_lost(*device, &gpu);
    if (strcmp(gpu->uuid, uuid) == 0) return result;
  }
  return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (!node_gpu_count()) return NVML_ERROR_UNINITIALIZED;
  if (!bus_id || !device) return NVML_ERROR_INVALID_ARGUMENT;
  if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    domain = 0;
    if (sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) < 2) return NVML_ERROR_INVALID_ARGUMENT;
  }
  for (unsigned index = 0; index < node_gpu_count(); index++) {
    if (!domain && bus == bus_number(index) && !slot && !function)
      return node_device(index, device);
  }
  return NVML_ERROR_NOT_FOUND;
}

/* --- who a device is -------------------------------------------------------------------------- */

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned size) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  return result == NVML_SUCCESS ? put_text(gpu->name, name, size) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned size) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  return result == NVML_SUCCESS ? put_text(gpu->uuid, uuid, size) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu); /* the handle may be anything */
  return result == NVML_SUCCESS ? node_answer(device, device->index, index) : result;
}

/* The number in the name of its device node, nvidia<minor>. */
NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  return nvmlDeviceGetIndex(device, minor);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const struct slip_gpu* gpu;
  nvmlReturn_t result = node_gpu(device, &gpu);
  if (result != NVML_SUCCESS) return result;
  if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
  memset(pci, 0, sizeof *pci);
  pci->bus = bus_number(device->index);
  pci->pciDeviceId = PCI_VENDOR;
  snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:00.0", 0u, pci->bus & 0xFF);
  snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:00.0", 0u, pci->bus & 0xFF);
  return NVML_SUCCESS;
}
NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return nvmlDeviceGetPciInfo_v3(device, pci);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned* mode) {
  return node_answer(device, 0, mode); /* default: any number of processes */
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* now, unsigned* pending) {
  nvmlReturn_t result = node_answer(device, 0, now);
  return result == NVML_SUCCESS ? node_answer(device, 0, pending) : result;
}
NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned* count) {
  return node_answer(device, 0, count);
}
NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned* is_mig) {
  return node_answer(device, 0, is_mig);
}

/* --- what callers commonly ask for and a simulated GPU has not ---------------------------------
 */

#define NOT_SUPPORTED(function)                                        \
  NVML_API nvmlReturn_t function(nvmlDevice_t device) {                \
    const struct slip_gpu* gpu;                                        \
    nvmlReturn_t result = node_gpu(device, &gpu);                      \
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result; \
  }

NOT_SUPPORTED(nvmlDeviceGetArchitecture)
NOT_SUPPORTED(nvmlDeviceGetAttributes_v2)
NOT_SUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
NOT_SUPPORTED(nvmlDeviceGetBoardId)
NOT_SUPPORTED(nvmlDeviceGetBrand)
NOT_SUPPORTED(nvmlDeviceGetClockInfo)
NOT_SUPPORTED(nvmlDeviceGetCpuAffinity)
NOT_SUPPORTED(nvmlDeviceGetCudaComputeCapability)
NOT_SUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration)
NOT_SUPPORTED(nvmlDeviceGetCurrPcieLinkWidth)
NOT_SUPPORTED(nvmlDeviceGetCurrentClocksEventReasons)
NOT_SUPPORTED(nvmlDeviceGetCurrentClocksThrottleReasons)
NOT_SUPPORTED(nvmlDeviceGetDecoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetDisplayActive)
NOT_SUPPORTED(nvmlDeviceGetDisplayMode)
NOT_SUPPORTED(nvmlDeviceGetEccMode)
NOT_SUPPORTED(nvmlDeviceGetEncoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetEnforcedPowerLimit)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed_v2)
NOT_SUPPORTED(nvmlDeviceGetFieldValues)
NOT_SUPPORTED(nvmlDeviceGetMaxClockInfo)
NOT_SUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration)
NOT_SUPPORTED(nvmlDeviceGetMaxPcieLinkWidth)
NOT_SUPPORTED(nvmlDeviceGetMigDeviceHandleByIndex)
NOT_SUPPORTED(nvmlDeviceGetNumFans)
NOT_SUPPORTED(nvmlDeviceGetNumGpuCores)
NOT_SUPPORTED(nvmlDeviceGetNvLinkState)
NOT_SUPPORTED(nvmlDeviceGetPerformanceState)
NOT_SUPPORTED(nvmlDeviceGetPersistenceMode)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementDefaultLimit)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimit)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints)
NOT_SUPPORTED(nvmlDeviceGetPowerState)
NOT_SUPPORTED(nvmlDeviceGetPowerUsage)
NOT_SUPPORTED(nvmlDeviceGetRemappedRows)
NOT_SUPPORTED(nvmlDeviceGetSerial)
NOT_SUPPORTED(nvmlDeviceGetTemperature)
NOT_SUPPORTED(nvmlDeviceGetTemperatureThreshold)
NOT_SUPPORTED(nvmlDeviceGetTemperatureV)
NOT_SUPPORTED(nvmlDeviceGetTopologyCommonAncestor)
NOT_SUPPORTED(nvmlDeviceGetTotalEccErrors)
NOT_SUPPORTED(nvmlDeviceGetTotalEnergyConsumption)
NOT_SUPPORTED(nvmlDeviceGetVbiosVersion)
NOT_SUPPORTED(nvmlDeviceGetViolationStatus)
