/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVML's binary interface that our library answers: values and layouts as callers such
 * as pynvml expect them. */
#ifndef SLIPSTREAM_SANDBOX_NVML_ABI_H
#define SLIPSTREAM_SANDBOX_NVML_ABI_H

#define NVML_API __attribute__((visibility("default")))

typedef enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef const struct device* nvmlDevice_t;
typedef struct event_set* nvmlEventSet_t;

enum {
  NVML_NO_INSTANCE = 0xFFFFFFFF, /* of MIG */
  NVML_EVENT_XID_CRITICAL_ERROR = 0x8,
  NVML_GPU_UTILIZATION_SAMPLES = 1,
  NVML_MEMORY_UTILIZATION_SAMPLES = 2,
  NVML_VALUE_TYPE_UNSIGNED_INT = 1,
  NVML_PCIE_UTIL_TX_BYTES = 0, /* from the GPU */
  NVML_PCIE_UTIL_RX_BYTES = 1,
  NVML_MEMORY_V2 = 0x02000028,
  NVML_PROCESSES_UTILIZATION_V1 = 0x01000018,
};

typedef struct {
  char busIdLegacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pciDeviceId;
  unsigned pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

typedef struct {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_t;

typedef struct {
  unsigned version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_v2_t;

typedef struct {
  unsigned gpu;
  unsigned memory;
} nvmlUtilization_t;

typedef struct {
  unsigned pid;
  unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId;
  unsigned computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef union {
  double dVal;
  unsigned uiVal;
  unsigned long long ullVal;
} nvmlValue_t;

typedef struct {
  unsigned long long timeStamp;
  nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
  unsigned pid;
  unsigned long long timeStamp;
  unsigned smUtil;
  unsigned memUtil;
  unsigned encUtil;
  unsigned decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
  unsigned long long timeStamp;
  unsigned pid;
  unsigned smUtil;
  unsigned memUtil;
  unsigned encUtil;
  unsigned decUtil;
  unsigned jpgUtil;
  unsigned ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
  unsigned version;
  unsigned processSamplesCount;
  unsigned long long lastSeenTimeStamp;
  nvmlProcessUtilizationInfo_v1_t* procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef struct {
  unsigned gpuUtilization;
  unsigned memoryUtilization;
  unsigned long long maxMemoryUsage;
  unsigned long long time;
  unsigned long long startTime;
  unsigned isRunning;
  unsigned reserved[5];
} nvmlAccountingStats_t;

typedef struct {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;
  unsigned gpuInstanceId;
  unsigned computeInstanceId;
} nvmlEventData_t;

#endif
