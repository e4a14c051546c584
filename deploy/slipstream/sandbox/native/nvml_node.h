/* SPDX-License-Identifier: Apache-2.0 */
/* The node's GPUs as our NVML library sees them: mapped read-only, never locked. */
#ifndef SLIPSTREAM_SANDBOX_NVML_NODE_H
#define SLIPSTREAM_SANDBOX_NVML_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu_state.h"
#include "nvml_abi.h"

/* What a handle points to. Handles outlive nvmlShutdown, as NVML's do. */
struct device {
  unsigned index;
};

/* Work that runs within a window of time, copied out of a ring. */
struct window {
  uint64_t from_ns; /* later than asked for if the ring does not reach back that far */
  uint64_t to_ns;
  size_t count;
  struct slip_entry* entries;
};

nvmlReturn_t node_open(void);
nvmlReturn_t node_close(void);

/* How many GPUs there are; 0 before nvmlInit. */
unsigned node_gpu_count(void);
nvmlReturn_t node_device(unsigned index, nvmlDevice_t* device);

/* The GPU of a handle. Fails before nvmlInit, for a foreign handle, and for a lost device. */
nvmlReturn_t node_gpu(nvmlDevice_t device, const struct slip_gpu** gpu);
/* The same without looking whether it is lost: the news of the loss still has to get out. */
nvmlReturn_t node_gpu_even_if_lost(nvmlDevice_t device, const struct slip_gpu** gpu);

/* One number as the answer about a device, or why there is none. */
nvmlReturn_t node_answer(nvmlDevice_t device, unsigned number, unsigned* out);

uint64_t node_now_ns(void);
/* From the GPUs' clock to microseconds of the wall clock, as NVML's time stamps are, and back. */
uint64_t node_wall_us(uint64_t at_ns);
uint64_t node_from_wall_ns(uint64_t wall_us);

/* The living processes of a GPU, in `processes[slot]`; pid 0 elsewhere. Returns how many. */
unsigned node_processes(const struct slip_gpu* gpu, struct slip_process processes[]);

/* The part of an engine's work that lies in [from_ns, to_ns). Free with window_free. */
bool window_open(const struct slip_gpu* gpu, int engine, uint64_t from_ns, uint64_t to_ns,
                 struct window* window);
void window_free(struct window* window);
/* Device time of an entry within [from_ns, to_ns). */
uint64_t entry_within_ns(const struct slip_entry* entry, uint64_t from_ns, uint64_t to_ns);

#endif
