/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled against CUDA's own headers, where they are: what cuda_calls.h says is what CUDA says. */
#include <cuda_runtime_api.h>

#include "../../torch_hooks/slipstream/torch_hooks/native/cuda_calls.h"

_Static_assert((int)cudaSuccess == SLIP_CUDA_SUCCESS, "success");
_Static_assert(cudaMemAttachGlobal == SLIP_CUDA_ATTACH_GLOBAL, "attach");
_Static_assert(cudaCpuDeviceId == SLIP_CUDA_CPU, "the host as a device");
_Static_assert((int)cudaMemAdviseSetPreferredLocation == SLIP_CUDA_PREFERRED_LOCATION, "preferred");
_Static_assert((int)cudaMemAdviseSetAccessedBy == SLIP_CUDA_ACCESSED_BY, "accessed");
_Static_assert((int)cudaMemLocationTypeDevice == SLIP_CUDA_LOCATION_DEVICE, "device");
_Static_assert(sizeof(struct cudaMemLocation) == sizeof(struct slip_cuda_location), "size");
_Static_assert(offsetof(struct cudaMemLocation, type) == offsetof(struct slip_cuda_location, type),
               "type");
_Static_assert(offsetof(struct cudaMemLocation, id) == offsetof(struct slip_cuda_location, id),
               "id");
_Static_assert(sizeof(enum cudaMemoryAdvise) == sizeof(int), "enumerations are numbers");
_Static_assert(sizeof(cudaStream_t) == sizeof(void*), "streams are pointers");
_Static_assert(sizeof(cudaEvent_t) == sizeof(void*), "events are pointers");
_Static_assert((int)cudaErrorNotReady == SLIP_CUDA_NOT_READY, "not ready");
_Static_assert(cudaEventDefault == SLIP_CUDA_EVENT_DEFAULT, "an event with its time");
_Static_assert(cudaEventDisableTiming == SLIP_CUDA_EVENT_WITHOUT_TIME, "and one without");
_Static_assert(cudaStreamNonBlocking == SLIP_CUDA_STREAM_NON_BLOCKING, "a stream of its own");
_Static_assert((int)cudaStreamCaptureStatusNone == SLIP_CUDA_CAPTURE_NONE, "no capture");
_Static_assert((int)cudaStreamCaptureModeRelaxed == SLIP_CUDA_CAPTURE_RELAXED, "relaxed");
_Static_assert(sizeof(enum cudaStreamCaptureStatus) == sizeof(int), "a status is a number");
_Static_assert(sizeof(enum cudaStreamCaptureMode) == sizeof(int), "a mode is a number");

cudaError_t (*slip_malloc)(void**, size_t) = cudaMalloc;
cudaError_t (*slip_managed)(void**, size_t, unsigned) = cudaMallocManaged;
cudaError_t (*slip_free)(void*) = cudaFree;
cudaError_t (*slip_last_error)(void) = cudaGetLastError;
cudaError_t (*slip_event_create)(cudaEvent_t*, unsigned) = cudaEventCreateWithFlags;
cudaError_t (*slip_event_destroy)(cudaEvent_t) = cudaEventDestroy;
cudaError_t (*slip_event_record)(cudaEvent_t, cudaStream_t) = cudaEventRecord;
cudaError_t (*slip_event_query)(cudaEvent_t) = cudaEventQuery;
cudaError_t (*slip_event_elapsed)(float*, cudaEvent_t, cudaEvent_t) = cudaEventElapsedTime;
cudaError_t (*slip_stream_create)(cudaStream_t*, unsigned) = cudaStreamCreateWithFlags;
cudaError_t (*slip_wait_event)(cudaStream_t, cudaEvent_t, unsigned) = cudaStreamWaitEvent;
cudaError_t (*slip_is_capturing)(cudaStream_t,
                                 enum cudaStreamCaptureStatus*) = cudaStreamIsCapturing;
cudaError_t (*slip_exchange_mode)(enum cudaStreamCaptureMode*) =
    cudaThreadExchangeStreamCaptureMode;
cudaError_t (*slip_host_function)(cudaStream_t, void (*)(void*), void*) = cudaLaunchHostFunc;
#if CUDART_VERSION >= 13000
_Static_assert(SLIP_CUDA_FIRST_WITH_LOCATIONS == 13000, "locations");
_Static_assert((int)cudaMemLocationTypeHost == SLIP_CUDA_LOCATION_HOST, "host");
cudaError_t (*slip_advise)(const void*, size_t, enum cudaMemoryAdvise,
                           struct cudaMemLocation) = cudaMemAdvise;
cudaError_t (*slip_prefetch)(const void*, size_t, struct cudaMemLocation, unsigned,
                             cudaStream_t) = cudaMemPrefetchAsync;
#else
cudaError_t (*slip_advise)(const void*, size_t, enum cudaMemoryAdvise, int) = cudaMemAdvise;
cudaError_t (*slip_prefetch)(const void*, size_t, int, cudaStream_t) = cudaMemPrefetchAsync;
#endif
