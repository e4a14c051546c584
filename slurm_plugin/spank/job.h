// SPDX-License-Identifier: Apache-2.0
// What a task knows of its job: the carrier, one environment variable written at submission.
//
// SLURM_SLIPSTREAM=class=opportunistic,role=guest,gpus=node:2,token=0123456789abcdef
//
// With --ntasks-per-gpu=2 it also has "tasks_per_gpu=2".
//
// job_submit writes it for batch jobs, cli_filter and the SPANK plugin for srun and salloc. Its
// name begins with SLURM_ because that alone passes --export=NONE. An owner that keeps guests away
// has "share=no" in it as well, which the node's coordinator looks for.
#ifndef SLIPSTREAM_SPANK_JOB_H
#define SLIPSTREAM_SPANK_JOB_H

#include <stdbool.h>
#include <stddef.h>

#define SLIP_CARRIER "SLURM_SLIPSTREAM"

enum { SLIP_WORD_SIZE = 32, SLIP_CARRIER_SIZE = 512 };

struct slip_job {
  char class_name[SLIP_WORD_SIZE];
  char role[SLIP_WORD_SIZE];   // owner, guest or none
  char token[SLIP_WORD_SIZE];  // none where no submission could tell
  char per[SLIP_WORD_SIZE];    // node, job, task or socket
  unsigned count;              // GPUs asked for, per that
  unsigned tasks_per_gpu;      // --ntasks-per-gpu; 0 if it was not given
  bool keeps_guests_away;      // --no-slip-share
};

// A job of which nothing is known.
extern const struct slip_job slip_unknown_job;

// False, and an unknown job, if the text is not a carrier.
bool slip_read_carrier(const char* text, struct slip_job* job);
bool slip_write_carrier(const struct slip_job* job, char* text, size_t size);

// How a job's GPUs spread: on this node, and to one task of it.
struct slip_place {
  unsigned nodes;          // of the job
  unsigned tasks_on_node;  // of the job
  unsigned task;           // local number
  bool is_script;          // the batch script, not a task: it sees all of the node's
};

unsigned slip_gpus_on_node(const struct slip_job* job, const struct slip_place* place);

// How many GPUs each task has for itself; 0 if all tasks have all of the job's.
unsigned slip_gpus_per_task(const struct slip_job* job, const struct slip_place* place);

#endif
