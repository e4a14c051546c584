/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * select/cons_tres with advice: the stock plugin, asked about fewer nodes.
 *
 * This object carries the stock plugin's file name, is found first through PluginDir and is linked
 * against the stock object, so that every symbol but two is the stock one. It may leave nodes out
 * of what a job is offered; it never adds any, and never refuses a job for good.
 *
 * select_p_job_test runs under slurmctld's job write lock: no I/O but reads of a small file in
 * memory, no log line in normal running, no state that grows.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advice_board.h"
#include "slurm_compat.h"
#include "src/common/log.h"
#include "stock_build.h"

const char plugin_name[] = "Consumable Trackable RESources with Slipstream's advice";
const char plugin_type[] = "select/cons_tres";
/* Slurm loads a select plugin of exactly its own version only; the source built from must be it. */
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

typedef int (*job_test_fn)(JOB_TEST_PARAMETERS);

/* The nodes of a record that exist, as bits. */
struct mask {
  bitstr_t* nodes;
  uint32_t known;
};

static enum slip_kind advice_for(const job_record_t* job, uint16_t mode, uint32_t min_nodes,
                                 bitoff_t size, bitstr_t** mask);
static bool follows_modes(uint16_t mode);
static uint32_t array_task(const job_record_t* job);
static struct slip_board* board(void);
static void add_node(const char* name, void* context);
static int preferring(JOB_TEST_PARAMETERS, const bitstr_t* mask);

static bool find_stock(void);

static bool fits; /* it is slurmctld that has loaded this, with the stock plugin it was built for */
static job_test_fn stock_job_test;
static int (*stock_reconfigure)(void);

/* With another stock plugin behind it than the one it was built beside, or none, this one does not
 * load, and Slurm takes the stock one itself from the next folder of PluginDir. Every command loads
 * it, and asks it nothing: not a word is printed here, and only slurmctld pays for the look. */
extern int init(void) {
  int (*stock_init)(void) = (int (*)(void))dlsym(RTLD_NEXT, "init");
  if (!stock_init) return SLURM_ERROR;
  if (strcmp(program_invocation_short_name, "slurmctld") == 0) {
    if (!find_stock() || !slip_has_build_id(stock_job_test, STOCK_BUILD_ID)) return SLURM_ERROR;
    fits = true;
  }
  return stock_init();
}

static bool find_stock(void) {
  stock_job_test = (job_test_fn)dlsym(RTLD_NEXT, "select_p_job_test");
  stock_reconfigure = (int (*)(void))dlsym(RTLD_NEXT, "select_p_reconfigure");
  return stock_job_test != NULL;
}

/* slurmctld alone calls this, at its start and when it is reconfigured: the daemon may know. */
extern int select_p_reconfigure(void) {
  if (fits)
    slip_board_sign(board());
  else
    find_stock();
  return stock_reconfigure ? stock_reconfigure() : SLURM_SUCCESS;
}

extern int select_p_job_test(JOB_TEST_PARAMETERS) {
  bitstr_t* mask = NULL;
  int result;
  if (!fits) return find_stock() ? stock_job_test(JOB_TEST_ARGUMENTS(candidates)) : SLURM_ERROR;
  switch (advice_for(job, mode, min_nodes, bit_size(nodes), &mask)) {
    case SLIP_REQUIRE:
      bit_and(nodes, mask);
      /* Without a node to ask about the answer is known: the job waits as for resources, and as
       * nothing is planned for it, no node is kept from others. */
      result = bit_ffs(nodes) < 0 ? SLURM_ERROR : stock_job_test(JOB_TEST_ARGUMENTS(candidates));
      break;
    case SLIP_PREFER:
      result = preferring(JOB_TEST_ARGUMENTS(candidates), mask);
      break;
    default:
      result = stock_job_test(JOB_TEST_ARGUMENTS(candidates));
  }
  FREE_NULL_BITMAP(mask);
  return result;
}

/* The advised nodes if the job can have them at once, and without any preemption; else as ever. */
static int preferring(JOB_TEST_PARAMETERS, const bitstr_t* mask) {
  int result = SLURM_ERROR;
  bitstr_t* offered = bit_copy(nodes);
  bit_and(nodes, (bitstr_t*)mask);
  if (bit_set_count(nodes) >= (int)min_nodes) {
    /* The backfill scheduler asks "when?" first and then offers only the nodes it was answered:
     * without a look at "now" here, a preference would be lost on every job it starts. */
    uint64_t flags = job->bit_flags;
    job->bit_flags |= TEST_NOW_ONLY;
    result = stock_job_test(JOB_TEST_ARGUMENTS(NULL));
    job->bit_flags = flags;
  }
  if (result != SLURM_SUCCESS) {
    bit_copybits(nodes, offered);
    result = stock_job_test(JOB_TEST_ARGUMENTS(candidates));
  }
  FREE_NULL_BITMAP(offered);
  return result;
}

/* What the board says about this job, and the nodes it says it of; SLIP_NONE: leave it alone. */
static enum slip_kind advice_for(const job_record_t* job, uint16_t mode, uint32_t min_nodes,
                                 bitoff_t size, bitstr_t** mask) {
  /* Callers hold the job write lock; should a release change that, the second one goes by stock. */
  static atomic_flag busy = ATOMIC_FLAG_INIT;
  uint64_t token;
  if (!job->details || !slip_marker_token(job->admin_comment, &token)) return SLIP_NONE;
  if (atomic_flag_test_and_set(&busy)) return SLIP_NONE;
  slip_board_sign(board());
  struct mask found = {NULL, 0};
  bool nowhere = false;
  enum slip_kind kind = SLIP_NONE;
  if (follows_modes(mode)) kind = slip_board_find(board(), token, array_task(job));
  if (kind != SLIP_NONE) {
    found.nodes = bit_alloc(size);
    const struct slip_slot* slot = &board()->slot;
    nowhere = slot->names_bytes == 0;
    if (!nowhere && slip_names_each(slot->names, slot->names_bytes, add_node, &found) < 0)
      kind = SLIP_NONE;
  }
  atomic_flag_clear(&busy);

  const bitstr_t* asked_for = job->details->req_node_bitmap;
  if (kind != SLIP_NONE && !nowhere &&
      (found.known < min_nodes || /* it could never be followed */
       (asked_for && !bit_super_set((bitstr_t*)asked_for, found.nodes))))
    kind = SLIP_NONE; /* the second: the user's own --nodelist comes first */
  if (kind == SLIP_NONE) FREE_NULL_BITMAP(found.nodes);
  *mask = found.nodes;
  return kind;
}

/* Never TEST_ONLY, which asks whether a job can ever run and refuses it if not; never RESV. */
static bool follows_modes(uint16_t mode) {
  uint16_t base = mode & SELECT_MODE_BASE;
  return base == SELECT_MODE_RUN_NOW || base == SELECT_MODE_WILL_RUN;
}

/* The backfill scheduler asks about an array as a whole: then its next task is meant. */
static uint32_t array_task(const job_record_t* job) {
  if (job->array_task_id != NO_VAL) return job->array_task_id;
  if (!job->array_recs || !job->array_recs->task_id_bitmap) return SLIP_ANY_TASK;
  bitoff_t next = bit_ffs(job->array_recs->task_id_bitmap);
  return next < 0 ? SLIP_ANY_TASK : (uint32_t)next;
}

static void add_node(const char* name, void* context) {
  struct mask* mask = context;
  node_record_t* node = find_node_record2((char*)name); /* the one that logs nothing */
  if (!node || node->index >= bit_size(mask->nodes) || bit_test(mask->nodes, node->index)) return;
  bit_set(mask->nodes, node->index);
  mask->known++;
}

static struct slip_board* board(void) {
  static struct slip_board one;
  static bool ready = false;
  if (!ready) {
    char path[PATH_MAX];
    const char* folder = getenv("SLIPSTREAM_RUN_DIR");
    snprintf(path, sizeof(path), "%s/advice.board", folder && *folder ? folder : "/run/slipstream");
    slip_board_init(&one, path);
    ready = true;
    info("slipstream: following the advice at %s", path);
  }
  return &one;
}
