// SPDX-License-Identifier: Apache-2.0
// The static table: which guest has which GPUs of this node when no coordinator says so.
//
// One text file in a folder of root's, a line for each slurmstepd that bound GPUs:
//
//     job=12 pid=345 start=67890 gpus=0,2
//
// A line whose process is gone is dropped by the next one that looks. The file is opened as root
// and then used through its descriptor by the task, which is the user's by that time.
#ifndef SLIPSTREAM_SPANK_TABLE_H
#define SLIPSTREAM_SPANK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "job.h"

enum { SLIP_GPUS_LIMIT = 64 };

struct slip_gpus {
  unsigned count;
  unsigned index[SLIP_GPUS_LIMIT];
};

// The table in `folder`, made if `create`; -1 if there is none or it is not root's alone.
int slip_open_table(const char* folder, bool create);

// How many GPUs (nvidia0, nvidia1, ...) there are in `folder`.
unsigned slip_count_gpus(const char* folder);

// The GPUs of a job on this node: those it has already, else the least used, lower numbers first.
// Those that are `closed` come last. Waits for the lock until `deadline_ms`, then chooses without
// it. Never fails.
void slip_bind(int table, uint32_t job, pid_t owner, unsigned wanted, unsigned gpus_on_node,
               const struct slip_gpus* closed, int64_t deadline_ms, struct slip_gpus* bound);

// The GPUs whose owners take no guests, as the coordinator last left them in `folder`; none if that
// was too long ago to be true still.
void slip_read_closed(const char* folder, struct slip_gpus* closed);

// What the table says of a job; false if nothing.
bool slip_find_bound(int table, uint32_t job, struct slip_gpus* bound);

// Sorts the GPUs of a job on this node by number, and leaves those that this task sees: all of
// them, or with --gpus-per-task and --ntasks-per-gpu its own, as Slurm binds an owner's tasks.
void slip_take_part(const struct slip_job* job, const struct slip_place* place,
                    struct slip_gpus* gpus);

// As CUDA_VISIBLE_DEVICES wants them: "0,2".
void slip_write_gpus(const struct slip_gpus* gpus, char* text, size_t size);

#endif
