// SPDX-License-Identifier: Apache-2.0
// The --slip-* flags: their names, their environment twins, and what is a good value.
//
// Knows nothing of Slurm, so that tests can call it. slurm_plugin/lua/slipstream/flags.lua checks
// the same values with the same sentences for jobs whose flags did not pass through here.
#ifndef SLIPSTREAM_SPANK_FLAGS_H
#define SLIPSTREAM_SPANK_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

enum slip_flag_id {
  SLIP_CLASS,
  SLIP_WEIGHT,
  SLIP_ELASTIC,
  SLIP_HINTS,
  SLIP_ROLES,
  SLIP_DATA,
  SLIP_NO_SHARE,
  SLIP_NO_MOVE,
  SLIP_FLAG_COUNT
};

enum { SLIP_VALUE_LIMIT = 256, SLIP_SENTENCE_SIZE = 512 };

struct slip_flag {
  const char* option;   // "slip-class", as in --slip-class
  const char* twin;     // "SLIPSTREAM_CLASS", in the environment and on the way to slurmctld
  const char* arginfo;  // NULL for a switch
  const char* usage;
};

extern const struct slip_flag slip_flags[SLIP_FLAG_COUNT];

// Whether `value` is good for the flag; if not, `why` holds a sentence with the good answers.
// `source` is what the user wrote: "--slip-class" or "SLIPSTREAM_CLASS".
bool slip_check(enum slip_flag_id flag, const char* source, const char* value, char* why,
                size_t why_size);

#endif
