/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for torch's pools: on the device up to a cap, beyond it managed memory that lies on the
 * host, where kernels reach it over the bus. Never run on a GPU. cuda_pool.py is for Python. */
#ifndef SLIPSTREAM_NATIVE_CUDA_POOL_H
#define SLIPSTREAM_NATIVE_CUDA_POOL_H

#include <stdint.h>
#include <sys/types.h>

enum { SLIP_CUDA_MAX_DEVICES = 64 };

enum slip_cuda_place {
  SLIP_CUDA_NOWHERE = 0, /* not ours */
  SLIP_CUDA_ON_DEVICE = 1,
  SLIP_CUDA_ON_HOST = 2,
};

struct slip_cuda_counts {
  uint64_t cap_bytes;
  uint64_t device_bytes; /* managed memory that was brought to the device is in this */
  uint64_t host_bytes;
  uint64_t most_device_bytes;
  uint64_t refused;   /* by CUDA, below the cap: others have the memory */
  uint64_t failed;    /* neither on the device nor on the host */
  uint64_t unknown;   /* given back and not ours, or for the second time */
  uint64_t unadvised; /* advice that CUDA did not take */
};

/* As CUDAPluggableAllocator wants them; a stream is a pointer. */
void* slip_cuda_alloc(ssize_t size, int device, void* stream);
void slip_cuda_free(void* pointer, ssize_t size, int device, void* stream);

/* What may be on a device from now on; nothing is moved by it. All of it without a call. */
void slip_cuda_cap(int device, uint64_t bytes);

/* Bring managed memory to the device while the cap has room, or away while it has too much; ends
 * after so many bytes at the latest, but for the last piece. Returns how many were moved. */
uint64_t slip_cuda_settle(int device, uint64_t at_most_bytes, void* stream);

/* In which of these places an address lies. */
int slip_cuda_where(const void* address);

void slip_cuda_count(int device, struct slip_cuda_counts* counts);

#endif
