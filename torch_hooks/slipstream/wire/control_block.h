/* SPDX-License-Identifier: Apache-2.0 */
/* The control block of a training process, for C. control_block.py is the same in Python and says
 * who writes what; a test compares the two field by field. */
#ifndef SLIPSTREAM_WIRE_CONTROL_BLOCK_H
#define SLIPSTREAM_WIRE_CONTROL_BLOCK_H

#include <stdint.h>

#define SLIP_CONTROL_VARIABLE "SLIPSTREAM_CONTROL"
#define SLIP_CONTROL_MAGIC "SLIPCTRL" /* eight characters, no closing zero in the page */

enum {
  SLIP_CONTROL_VERSION = 2,
  SLIP_CONTROL_PAGE_BYTES = 4096,
  SLIP_CONTROL_UP_OFFSET = 2048,
  SLIP_CONTROL_DOWN_OFFSET = 3072,
  SLIP_CONTROL_MAX_GPUS = 16,
  SLIP_CONTROL_GPU_BYTES = 48,
};

enum slip_role { SLIP_ROLE_NONE = 0, SLIP_ROLE_OWNER = 1, SLIP_ROLE_GUEST = 2 };

enum slip_phase {
  SLIP_PHASE_UNCLAIMED = 0,
  SLIP_PHASE_IMPORTING = 1,
  SLIP_PHASE_LOADING = 2,
  SLIP_PHASE_TRAINING = 3,
  SLIP_PHASE_WAITING_FOR_BATON = 4,
  SLIP_PHASE_ENDED = 5,
  SLIP_PHASE_PARKED = 6,
  SLIP_PHASE_SAVING = 7,
  SLIP_PHASE_RESTORING = 8,
  SLIP_PHASE_PAUSED = 9,
  SLIP_PHASE_REBINDING = 10,
};

enum slip_request {
  SLIP_REQUEST_NONE = 0,
  SLIP_REQUEST_PAUSE = 1,
  SLIP_REQUEST_PARK = 2,
  SLIP_REQUEST_CHECKPOINT = 3,
  SLIP_REQUEST_REBIND = 4,
  SLIP_REQUEST_HOLD = 5,
};

enum slip_capability {
  SLIP_CAPABILITY_BOUNDARIES = 1,
  SLIP_CAPABILITY_BATON = 2,
  SLIP_CAPABILITY_PAUSE = 4,
  SLIP_CAPABILITY_RESTORABLE = 16,
  SLIP_CAPABILITY_PARKABLE = 32,
  SLIP_CAPABILITY_GATEABLE = 64,
  SLIP_CAPABILITY_REBINDABLE = 128,
  SLIP_CAPABILITY_HOLDABLE = 256,
};

struct slip_control_header {
  char magic[8];
  uint32_t version;
  uint32_t page_bytes;
  uint64_t job_id;
  uint32_t task;
  uint32_t uid;
  uint32_t asked_pid;
  uint32_t role;
  uint64_t asked_started_ticks;
  char step[16];
  char class_name[16];
  char token[32];
  uint32_t gpu_count;
  uint32_t reserved;
  char gpus[SLIP_CONTROL_MAX_GPUS][SLIP_CONTROL_GPU_BYTES];
};

struct slip_control_up {
  uint64_t sequence;
  uint64_t pid;
  uint64_t phase;
  uint64_t minibatches;
  uint64_t last_boundary_ns;
  uint64_t minibatch_ns;
  uint64_t capabilities;
  uint64_t problems;
  uint64_t leases_lost;
  uint64_t baton_waited_ns;
  uint64_t directive_epoch;
  uint64_t parked_ns;
  uint64_t started_ns;
  uint64_t attached_ns;
  uint64_t imported_ns;
  uint64_t first_boundary_ns;
  uint64_t saving_ns;
  uint64_t paused_ns;
  uint64_t gated_ns;
  uint64_t away_bytes;
  uint64_t rebinds;
  uint64_t held;
  uint64_t resumed_at;
  uint64_t world_size;
  uint64_t rank;
};

struct slip_control_down {
  uint64_t sequence;
  uint64_t epoch;
  uint64_t share_pct;
  uint64_t cap_bytes;
  uint64_t request;
  uint64_t armed_for_minibatch;
  uint64_t lease_until_ns;
  uint64_t gpu_count;
  char gpus[SLIP_CONTROL_MAX_GPUS][SLIP_CONTROL_GPU_BYTES];
};

#endif
