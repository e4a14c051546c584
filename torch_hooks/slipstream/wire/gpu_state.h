/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of one node's simulated GPUs, for readers in C. gpu_state.py is the same in Python and
 * says who writes what; a test compares the two field by field. */
#ifndef SLIPSTREAM_WIRE_GPU_STATE_H
#define SLIPSTREAM_WIRE_GPU_STATE_H

#include <stdint.h>

#define SLIP_GPU_STATE_VARIABLE "SLIPSTREAM_GPU_STATE"
#define SLIP_LOCK_SUFFIX ".lock"

enum {
  SLIP_VERSION = 1,
  SLIP_HEADER_BYTES = 4096,
  SLIP_MAX_GPUS = 64,
  SLIP_MAX_PROCESSES = 64,
  SLIP_MAX_UNFINISHED = 1024,
  SLIP_RING = 8192,
  SLIP_XIDS = 16,
  SLIP_COMPUTE = 0,
  SLIP_COPY = 1,
  SLIP_ENGINES = 2,
  SLIP_DROPPED = 1,
  SLIP_TO_HOST = 2,
  SLIP_LIFE_OFFSET = 4096,
};

#define SLIP_MAGIC "SLIPGPUS" /* eight characters, no closing zero in the file */

struct slip_header {
  char magic[8];
  uint32_t version;
  uint32_t gpu_count;
  uint64_t gpu_bytes;
  uint64_t file_bytes;
  char cluster[64];
  char node[64];
};

struct slip_entry {
  uint64_t sequence;
  uint16_t slot;
  uint16_t flags;
  uint32_t generation;
  uint64_t start_ns;
  uint64_t duration_ns;
  uint64_t launched_total_ns;
};

struct slip_process {
  uint32_t pid;
  uint32_t generation;
  uint64_t opened_at_ns;
  uint64_t memory_bytes;
  uint64_t peak_memory_bytes;
  uint64_t launched_ns[SLIP_ENGINES];
  uint64_t base_ns[SLIP_ENGINES];
};

struct slip_engine {
  uint64_t tail;
  uint64_t moves;
  struct slip_entry entries[SLIP_RING];
};

struct slip_gpu {
  uint64_t sequence;
  char uuid[48];
  char name[64];
  uint64_t memory_bytes;
  uint64_t copy_bytes_per_s;
  uint64_t health;
  uint64_t xid_count;
  uint32_t xids[SLIP_XIDS];
  uint64_t checked_at_ns;
  struct slip_process processes[SLIP_MAX_PROCESSES];
  struct slip_engine engines[SLIP_ENGINES];
};

#endif
