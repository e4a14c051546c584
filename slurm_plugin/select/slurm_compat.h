/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What differs between the Slurm releases the wrapper is built for, and nothing else.
 *
 *                     22.05        23.02        23.11         24.11, 25.05, 25.11, 26.05
 *   header            src/common   src/interfaces
 *   lists             List                                    list_t *
 *   9th argument      bitstr_t *                resv_exc_t *
 *   10th argument                                             will_run_data_t *
 *
 * Built for and run on 22.05.8 and 24.11.5. The build takes the source of exactly
 * the installed Slurm, so a release that differs further does not compile, and is not loaded.
 */
#ifndef SLIPSTREAM_SLURM_COMPAT_H
#define SLIPSTREAM_SLURM_COMPAT_H

#include "config.h"
#include "slurm/slurm.h"
#include "slurm/slurm_errno.h"
#include "slurm/slurm_version.h"
#include "src/common/bitstring.h"
#include "src/common/list.h"
#include "src/common/log.h"
#include "src/common/node_conf.h"
#include "src/slurmctld/slurmctld.h"

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
#include "src/interfaces/select.h"
#else
#include "src/common/select.h"
#endif

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 11, 0)
typedef list_t* job_list_t;
#define LAST_PARAMETERS resv_exc_t *exclusions, will_run_data_t *will_run
#define LAST_ARGUMENTS exclusions, will_run
#elif SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
typedef List job_list_t;
#define LAST_PARAMETERS resv_exc_t* exclusions
#define LAST_ARGUMENTS exclusions
#else
typedef List job_list_t;
#define LAST_PARAMETERS bitstr_t* exclusions
#define LAST_ARGUMENTS exclusions
#endif

#define JOB_TEST_PARAMETERS                                                                       \
  job_record_t *job, bitstr_t *nodes, uint32_t min_nodes, uint32_t max_nodes, uint32_t req_nodes, \
      uint16_t mode, job_list_t candidates, job_list_t *preempted, LAST_PARAMETERS

/* The arguments as they came in, with other preemption candidates. */
#define JOB_TEST_ARGUMENTS(candidates) \
  job, nodes, min_nodes, max_nodes, req_nodes, mode, (candidates), preempted, LAST_ARGUMENTS

#endif
