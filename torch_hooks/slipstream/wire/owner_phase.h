/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's phase word of a GPU, for C. owner_phase.py is the same in Python and says who writes
 * what; a test compares the two. Guests read it through its descriptor: the file belongs to the
 * owner's user, who may cut it short, and touching a mapping of what is gone would kill the guest.
 * They map it for the futex, which the kernel touches for them. */
#ifndef SLIPSTREAM_WIRE_OWNER_PHASE_H
#define SLIPSTREAM_WIRE_OWNER_PHASE_H

#include <stdint.h>

#define SLIP_OWNER_PHASE_MAGIC "SLIPPHAS" /* eight characters, no closing zero in the file */

enum { SLIP_OWNER_PHASE_VERSION = 1, SLIP_OWNER_PHASE_FILE_BYTES = 4096 };

struct slip_owner_phase {
  char magic[8];
  uint32_t version;
  uint32_t word; /* the futex; odd: the owner waits and its GPU is free */
  uint64_t job_id;
  uint64_t pid; /* 0: no owner says anything */
  uint64_t idle_from_ns;
  uint64_t ends_ns;
  uint64_t closed_ns;
  uint64_t waits;
};

#endif
