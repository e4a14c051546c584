/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static struct slip_cuda_calls calls;
static const struct slip_cuda_calls* found;
static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;

/* A pointer to a function is not one to data, but the linker knows no other. */
#define FIND(handle, name, place)                      \
  do {                                                 \
    void* symbol = dlsym(handle, name);                \
    if (symbol == NULL) return name;                   \
    memcpy(&(place), &symbol, sizeof(void (*)(void))); \
  } while (0)

static const char* find(void* handle) {
  int (*get_version)(int*) = NULL;
  FIND(handle, "cudaRuntimeGetVersion", get_version);
  if (get_version(&calls.version) != SLIP_CUDA_SUCCESS) return "its version";
  FIND(handle, "cudaMalloc", calls.malloc_device);
  FIND(handle, "cudaMallocManaged", calls.malloc_managed);
  FIND(handle, "cudaFree", calls.free);
  FIND(handle, "cudaGetDevice", calls.get_device);
  FIND(handle, "cudaSetDevice", calls.set_device);
  FIND(handle, "cudaGetLastError", calls.last_error);
  FIND(handle, "cudaEventCreateWithFlags", calls.event_create);
  FIND(handle, "cudaEventDestroy", calls.event_destroy);
  FIND(handle, "cudaEventRecord", calls.event_record);
  FIND(handle, "cudaEventQuery", calls.event_query);
  FIND(handle, "cudaEventElapsedTime", calls.event_elapsed);
  FIND(handle, "cudaStreamCreateWithFlags", calls.stream_create);
  FIND(handle, "cudaStreamWaitEvent", calls.stream_wait_event);
  FIND(handle, "cudaStreamIsCapturing", calls.stream_is_capturing);
  FIND(handle, "cudaThreadExchangeStreamCaptureMode", calls.exchange_capture_mode);
  FIND(handle, "cudaLaunchHostFunc", calls.launch_host_function);
  if (calls.version >= SLIP_CUDA_FIRST_WITH_LOCATIONS) {
    FIND(handle, "cudaMemAdvise", calls.advise_13);
    FIND(handle, "cudaMemPrefetchAsync", calls.prefetch_13);
  } else {
    FIND(handle, "cudaMemAdvise", calls.advise);
    FIND(handle, "cudaMemPrefetchAsync", calls.prefetch);
  }
  return NULL;
}

const char* slip_cuda_find(const char* library) {
  const char* missing = NULL;
  pthread_mutex_lock(&finding);
  if (found == NULL) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL); /* never closed: we keep its functions */
    missing = handle ? find(handle) : "the library";
    if (missing == NULL) __atomic_store_n(&found, &calls, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&finding);
  return missing;
}

const struct slip_cuda_calls* slip_cuda_calls(void) {
  return __atomic_load_n(&found, __ATOMIC_ACQUIRE);
}
