/* SPDX-License-Identifier: Apache-2.0 */
/* What we call of CUDA's runtime, found by name at run time: no header of CUDA's is needed to
 * compile this, and no driver to load it. Where CUDA's headers are, a test compares. */
#ifndef SLIPSTREAM_NATIVE_CUDA_CALLS_H
#define SLIPSTREAM_NATIVE_CUDA_CALLS_H

#include <stddef.h>

enum {
  SLIP_CUDA_SUCCESS = 0,
  SLIP_CUDA_ATTACH_GLOBAL = 1,
  SLIP_CUDA_PREFERRED_LOCATION = 3,
  SLIP_CUDA_ACCESSED_BY = 5,
  SLIP_CUDA_CPU = -1,            /* a device, before CUDA 13 */
  SLIP_CUDA_LOCATION_DEVICE = 1, /* from CUDA 13 on a place is one of these and a device */
  SLIP_CUDA_LOCATION_HOST = 2,
  SLIP_CUDA_FIRST_WITH_LOCATIONS = 13000,
  SLIP_CUDA_NOT_READY = 600,
  SLIP_CUDA_EVENT_DEFAULT = 0, /* with its time */
  SLIP_CUDA_EVENT_WITHOUT_TIME = 2,
  SLIP_CUDA_STREAM_NON_BLOCKING = 1,
  SLIP_CUDA_CAPTURE_NONE = 0,
  SLIP_CUDA_CAPTURE_RELAXED = 2,
};

struct slip_cuda_location {
  int type;
  int id;
};

struct slip_cuda_calls {
  int version;
  int (*malloc_device)(void**, size_t);
  int (*malloc_managed)(void**, size_t, unsigned);
  int (*free)(void*);
  int (*get_device)(int*);
  int (*set_device)(int);
  int (*last_error)(void);
  int (*advise)(const void*, size_t, int advice, int device);
  int (*advise_13)(const void*, size_t, int advice, struct slip_cuda_location);
  int (*prefetch)(const void*, size_t, int device, void* stream);
  int (*prefetch_13)(const void*, size_t, struct slip_cuda_location, unsigned flags, void* stream);
  int (*event_create)(void**, unsigned flags);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void* stream);
  int (*event_query)(void*);
  int (*event_elapsed)(float* ms, void* begin, void* end);
  int (*stream_create)(void**, unsigned flags);
  int (*stream_wait_event)(void* stream, void* event, unsigned flags);
  int (*stream_is_capturing)(void* stream, int* status);
  int (*exchange_capture_mode)(int* mode);
  int (*launch_host_function)(void* stream, void (*function)(void*), void* data);
};

/* Find them in a library; returns what is missing, or null. Once found they stay. */
const char* slip_cuda_find(const char* library);

/* Null until they were found. */
const struct slip_cuda_calls* slip_cuda_calls(void);

#endif
