// SPDX-License-Identifier: Apache-2.0
// The SPANK plugin: --slip-* flags on sbatch, srun and salloc, and what a task finds when it
// starts.
//
// In the client it may refuse a bad flag. On a node it never fails, never waits longer than its
// deadlines and touches only jobs that asked for us: a mistake of ours must not cost a node.
#include <errno.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flags.h"
#include "job.h"
#include "node_socket.h"
#include "table.h"

// Every sbatch loads this: nothing but what Slurm looks for has to be found in it.
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(slipstream, 1)
#pragma GCC visibility pop

enum { ANSWER_MS = 200, LOCK_MS = 100, PATH_SIZE = 256, PYTHONPATH_SIZE = 16384 };
// Of a job that was started anew: for how long it asks, for how long each time, and how often.
enum { ANEW_MS = 20000, ANEW_ANSWER_MS = 2000, ASK_AGAIN_MS = 250 };
enum { NODES_SIZE = 2048 };
#define HOST_FILE "SLURM_HOSTFILE"  // a user's own counts before ours

// What the client has been told on its command line or in #SBATCH lines.
static char given[SLIP_FLAG_COUNT][SLIP_VALUE_LIMIT + 1];
static bool is_given[SLIP_FLAG_COUNT];
static struct spank_option options[SLIP_FLAG_COUNT];

// What one task is about; set as root, used as the user.
static struct slip_job job;
static struct slip_gpus known_gpus;
static bool is_ours;
static int table = -1;

static int take_option(int flag, const char* value, int remote);
static bool allocates(spank_context_t context);
static bool is_in_a_job(void);
static void forget_outer_job(void);
static void pass_on(spank_t spank, enum slip_flag_id flag);
static void carry_class(void);
static void tell_data(spank_t spank);
static const char* node_folder(void);
static const char* device_folder(void);
static bool recall_job(spank_t spank);
static void describe_place(spank_t spank, struct slip_place* place);
static void settle_role(spank_t spank, const struct slip_place* place);
static void write_request(spank_t spank, const struct slip_place* place, unsigned gpus,
                          char* request, size_t size);
static bool follow_answer(spank_t spank, const struct slip_answer* answer);
static void lead_imports(spank_t spank, const char* folder);
static void forget_gpu_requests(spank_t spank, const struct slip_place* place);
static void bind_statically(spank_t spank, const struct slip_place* place, unsigned gpus);
static void leave_address(spank_t spank);
static unsigned number_in(spank_t spank, const char* variable);

// --- in sbatch, srun and salloc --------------------------------------------------------------

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  (void)argc, (void)argv;
  spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
    return ESPANK_SUCCESS;
  for (int flag = 0; flag < SLIP_FLAG_COUNT; flag++) {
    const struct slip_flag* told = &slip_flags[flag];
    options[flag] = (struct spank_option){
        (char*)told->option, (char*)told->arginfo, (char*)told->usage, told->arginfo != NULL, flag,
        take_option};
    if (spank_option_register(spank, &options[flag]) != ESPANK_SUCCESS)
      slurm_error("slipstream: --%s could not be registered", told->option);
  }
  if (allocates(context)) forget_outer_job();
  return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char** argv) {
  (void)argc, (void)argv;
  spank_context_t context = spank_context();
  if (!allocates(context)) return ESPANK_SUCCESS;
  for (int flag = 0; flag < SLIP_FLAG_COUNT; flag++) pass_on(spank, flag);
  // Into a batch job's environment job_submit writes, which has the last word on the role. For the
  // others only the client can.
  if (strcmp(program_invocation_short_name, "sbatch") != 0) carry_class();
  return ESPANK_SUCCESS;
}

static int take_option(int flag, const char* value, int remote) {
  if (flag < 0 || flag >= SLIP_FLAG_COUNT) return ESPANK_SUCCESS;
  if (remote) {  // checked when it was given; only the hooks need it again
    if (flag == SLIP_DATA && value) snprintf(given[flag], sizeof given[flag], "%s", value);
    return ESPANK_SUCCESS;
  }
  char source[SLIP_WORD_SIZE];
  char why[SLIP_SENTENCE_SIZE];
  const char* taken = slip_flags[flag].arginfo ? (value ? value : "") : "1";
  snprintf(source, sizeof source, "--%s", slip_flags[flag].option);
  if (!slip_check(flag, source, taken, why, sizeof why)) {
    slurm_spank_log("%s", why);
    return -1;
  }
  strcpy(given[flag], taken);
  is_given[flag] = true;
  return ESPANK_SUCCESS;
}

// Whether this command makes a new job: srun inside one only starts a step of it.
static bool allocates(spank_context_t context) {
  return context == S_CTX_ALLOCATOR || (context == S_CTX_LOCAL && !getenv("SLURM_JOB_ID"));
}

// Slurm hands a job what all of these names begin with; most commands are run outside of any.
static bool is_in_a_job(void) {
  for (char** at = environ; at && *at; at++)
    if (strncmp(*at, "SLURM_S", 7) == 0) return true;
  return false;
}

// A job submitted from inside another is a new one: it has only the flags it is given itself. Slurm
// would hand it those of the outer job, which are in the environment for the steps of that.
static void forget_outer_job(void) {
  char name[4 * SLIP_WORD_SIZE];
  if (!is_in_a_job()) return;
  unsetenv(SLIP_CARRIER);
  for (int flag = 0; flag < SLIP_FLAG_COUNT; flag++) {
    snprintf(name, sizeof name, "SLURM_SPANK_%s", slip_flags[flag].twin);
    unsetenv(name);
    snprintf(name, sizeof name, "SLURM_SPANK__SLURM_SPANK_OPTION_slipstream_%s",
             slip_flags[flag].option);
    for (char* at = name; *at; at++)
      if (*at == '-') *at = '_';
    unsetenv(name);
  }
}

// To job_submit, under the name of the twin. A twin is not checked here, because SPANK has no way
// to refuse it in an optional plugin; job_submit refuses it with the same sentence.
static void pass_on(spank_t spank, enum slip_flag_id flag) {
  const char* twin = getenv(slip_flags[flag].twin);
  char value[SLIP_VALUE_LIMIT + 2];
  if (is_given[flag])
    snprintf(value, sizeof value, "%s", given[flag]);
  else if (twin && *twin)
    snprintf(value, sizeof value, "%s", twin);  // one byte too long is enough to be refused
  else
    return;
  spank_job_control_setenv(spank, slip_flags[flag].twin, value, 1);
}

// Unless cli_filter has written more than we know here: how many GPUs were asked for.
static void carry_class(void) {
  const char* twin = getenv(slip_flags[SLIP_CLASS].twin);
  const char* class_name = is_given[SLIP_CLASS] ? given[SLIP_CLASS] : twin;
  char why[SLIP_SENTENCE_SIZE];
  if (getenv(SLIP_CARRIER) || !class_name) return;
  if (!slip_check(SLIP_CLASS, "", class_name, why, sizeof why)) return;
  bool guest = strcmp(class_name, "opportunistic") == 0;
  struct slip_job told = slip_unknown_job;
  strcpy(told.class_name, class_name);  // one of four short words by now
  strcpy(told.role, guest ? "guest" : "owner");
  const char* alone = getenv(slip_flags[SLIP_NO_SHARE].twin);
  told.keeps_guests_away = is_given[SLIP_NO_SHARE] || (alone && strcmp(alone, "1") == 0);
  told.count = guest;  // at least it must not see every GPU of the node
  char carrier[SLIP_CARRIER_SIZE];
  if (slip_write_carrier(&told, carrier, sizeof carrier)) setenv(SLIP_CARRIER, carrier, 1);
}

// --- in slurmstepd, for one task --------------------------------------------------------------

// Root: what only root may read is read here.
int slurm_spank_task_init_privileged(spank_t spank, int argc, char** argv) {
  (void)argc, (void)argv;
  is_ours = recall_job(spank);
  // Also for an owner: it may turn out to be a guest by now.
  if (is_ours && table < 0) table = slip_open_table(node_folder(), true);
  return ESPANK_SUCCESS;
}

// The job's user, last of all: what is set here is what the task sees.
int slurm_spank_task_init(spank_t spank, int argc, char** argv) {
  (void)argc, (void)argv;
  if (!is_ours) return ESPANK_SUCCESS;
  tell_data(spank);
  static struct slip_answer answer;
  struct slip_place place;
  describe_place(spank, &place);
  settle_role(spank, &place);
  unsigned gpus = known_gpus.count ? known_gpus.count : slip_gpus_on_node(&job, &place);
  bool guest = strcmp(job.role, "guest") == 0;
  char path[PATH_SIZE];
  static char request[SLIP_CARRIER_SIZE + NODES_SIZE];
  const char* why = "";
  snprintf(path, sizeof path, "%s/node.sock", node_folder());
  write_request(spank, &place, gpus, request, sizeof request);
  bool told = slip_ask_node(path, request, slip_now_ms() + ANSWER_MS, &answer, &why);
  // Where it was saved only the coordinator says, which may be starting itself: without it a job
  // that was started anew would begin from nothing.
  int64_t until_ms = slip_now_ms() + ANEW_MS;
  while (!told && number_in(spank, "SLURM_RESTART_COUNT") > 0 && slip_now_ms() < until_ms) {
    usleep(ASK_AGAIN_MS * 1000);
    told = slip_ask_node(path, request, slip_now_ms() + ANEW_ANSWER_MS, &answer, &why);
  }
  if (!told) slurm_debug("slipstream: %s: %s", path, why);
  if (guest) forget_gpu_requests(spank, &place);
  bool bound = told && follow_answer(spank, &answer);
  if (guest && !bound && gpus > 0) bind_statically(spank, &place, gpus);
  if (table >= 0) close(table);
  table = -1;
  return ESPANK_SUCCESS;
}

// As Slurm does itself, but for a job whose environment is not passed on. Not under the name of the
// twin: that would be a flag for jobs submitted from inside this one.
static void tell_data(spank_t spank) {
  char name[4 * SLIP_WORD_SIZE];
  if (!given[SLIP_DATA][0]) return;
  snprintf(name, sizeof name, "SLURM_SPANK_%s", slip_flags[SLIP_DATA].twin);
  spank_setenv(spank, name, given[SLIP_DATA], 1);
}

static const char* node_folder(void) {
  const char* folder = getenv("SLIPSTREAM_NODE_RUN_DIR");
  if (!folder || !*folder) folder = getenv("SLIPSTREAM_RUN_DIR");
  return folder && *folder ? folder : "/run/slipstream";
}

static const char* device_folder(void) {
  const char* folder = getenv("SLIPSTREAM_DEVICE_DIR");
  return folder && *folder ? folder : "/dev";
}

// From the carrier; a step that came without it (srun --jobid) may still be known by the table.
static bool recall_job(spank_t spank) {
  char carrier[SLIP_CARRIER_SIZE];
  known_gpus.count = 0;
  // job_submit leaves the parts of a heterogeneous job to Slurm, and so do we.
  if (number_in(spank, "SLURM_HET_SIZE") > 0) return false;
  if (spank_getenv(spank, SLIP_CARRIER, carrier, sizeof carrier) == ESPANK_SUCCESS)
    return slip_read_carrier(carrier, &job);
  uint32_t id = 0;
  job = slip_unknown_job;
  table = slip_open_table(node_folder(), false);
  if (table < 0 || spank_get_item(spank, S_JOB_ID, &id) != ESPANK_SUCCESS ||
      !slip_find_bound(table, id, &known_gpus))
    return false;
  strcpy(job.class_name, "opportunistic");
  strcpy(job.role, "guest");
  return true;
}

static void describe_place(spank_t spank, struct slip_place* place) {
  uint32_t step = 0;
  int task = 0;
  spank_get_item(spank, S_JOB_STEPID, &step);
  spank_get_item(spank, S_TASK_ID, &task);
  place->is_script = step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP;
  place->task = task > 0 ? (unsigned)task : 0;
  place->nodes = number_in(spank, "SLURM_JOB_NUM_NODES");
  if (place->is_script) {
    place->tasks_on_node = number_in(spank, "SLURM_TASKS_PER_NODE");  // "2(x3)": of the first node
  } else {
    uint32_t tasks = 0;
    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks);
    place->tasks_on_node = tasks;
  }
}

// A job that was moved or upgraded holds something else than it was submitted with. Slurm sets
// CUDA_VISIBLE_DEVICES for whoever holds real GPUs and unsets it for everybody else; only a step
// that waived its job's GPUs looks like a guest, so that a script alone is judged the other way.
static void settle_role(spank_t spank, const struct slip_place* place) {
  char visible[SLIP_CARRIER_SIZE];
  char carrier[SLIP_CARRIER_SIZE];
  spank_err_t found = spank_getenv(spank, "CUDA_VISIBLE_DEVICES", visible, sizeof visible);
  bool holds_gpus = found == ESPANK_SUCCESS && visible[0];
  if (strcmp(job.role, "guest") == 0 && holds_gpus)
    strcpy(job.role, "owner");
  else if (strcmp(job.role, "owner") == 0 && !holds_gpus && job.count > 0 && place->is_script)
    strcpy(job.role, "guest");
  else
    return;
  if (slip_write_carrier(&job, carrier, sizeof carrier))
    spank_setenv(spank, SLIP_CARRIER, carrier, 1);
}

static void write_request(spank_t spank, const struct slip_place* place, unsigned gpus,
                          char* request, size_t size) {
  uint32_t id = 0, step = 0, tasks = 0;
  uid_t uid = 0;
  char node[SLIP_WORD_SIZE * 2] = "none";
  char step_name[SLIP_WORD_SIZE];
  static char nodes[NODES_SIZE];
  // Of a script alone: it may be told which of its tasks belongs where. Rather none than a part.
  if (!place->is_script || place->nodes < 2 ||
      spank_getenv(spank, "SLURM_JOB_NODELIST", nodes, sizeof nodes) != ESPANK_SUCCESS)
    nodes[0] = '\0';
  spank_get_item(spank, S_JOB_ID, &id);
  spank_get_item(spank, S_JOB_STEPID, &step);
  spank_get_item(spank, S_JOB_UID, &uid);
  spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks);
  spank_getenv(spank, "SLURMD_NODENAME", node, sizeof node);
  snprintf(step_name, sizeof step_name, "%u", step);
  if (step == SLURM_BATCH_SCRIPT) strcpy(step_name, "batch");
  if (step == SLURM_INTERACTIVE_STEP) strcpy(step_name, "interactive");
  if (step == SLURM_EXTERN_CONT) strcpy(step_name, "extern");
  snprintf(request, size,
           "v=1 op=start job=%u step=%s uid=%u node=%s task=%u tasks=%u gpus=%u gpus_per_task=%u "
           "tasks_per_gpu=%u role=%s class=%s token=%s waits=1%s%s\n",
           id, step_name, (unsigned)uid, node, place->task, tasks, gpus,
           slip_gpus_per_task(&job, place), place->is_script ? 0 : job.tasks_per_gpu, job.role,
           job.class_name, job.token, nodes[0] ? " nodes=" : "", nodes);
}

// Whether the answer said anything of the GPUs.
static bool follow_answer(spank_t spank, const struct slip_answer* answer) {
  bool bound = false;
  for (size_t at = 0; at < answer->count; at++) {
    const struct slip_order* order = &answer->orders[at];
    if (order->value)
      spank_setenv(spank, order->name, order->value, strcmp(order->name, HOST_FILE) != 0);
    else
      spank_unsetenv(spank, order->name);
    if (strcmp(order->name, "CUDA_VISIBLE_DEVICES") == 0) bound = true;
    if (strcmp(order->name, "SLIPSTREAM_INJECT") == 0 && order->value)
      lead_imports(spank, order->value);
  }
  return bound;
}

// The import hook's folder goes first on PYTHONPATH, once: steps inherit it from their script.
static void lead_imports(spank_t spank, const char* folder) {
  static char kept[PYTHONPATH_SIZE];
  static char led[PYTHONPATH_SIZE + PATH_SIZE];
  size_t length = strlen(folder);
  spank_err_t found = spank_getenv(spank, "PYTHONPATH", kept, sizeof kept);
  if (found == ESPANK_NOSPACE || length >= PATH_SIZE) return;  // rather no hooks than a cut path
  if (found != ESPANK_SUCCESS) kept[0] = '\0';
  if (strncmp(kept, folder, length) == 0 && (!kept[length] || kept[length] == ':')) return;
  snprintf(led, sizeof led, "%s%s%s", folder, kept[0] ? ":" : "", kept);
  spank_setenv(spank, "PYTHONPATH", led, 1);
}

// A guest holds no gres/gpu: an srun inside it that inherits a wish for one would fail. What only
// tells of GPUs is written anew; a step inherits its script's SLURM_JOB_GPUS, as an owner's does.
static void forget_gpu_requests(spank_t spank, const struct slip_place* place) {
  static const char* const variables[] = {
      "SLURM_GPUS",          "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE",  "SLURM_GPUS_PER_SOCKET",
      "SLURM_GPUS_PER_TASK", "SLURM_STEP_GPUS",    "SLURM_NTASKS_PER_GPU", "SLURM_CPUS_PER_GPU",
      "SLURM_MEM_PER_GPU",   "SLURM_GPU_BIND",     "SLURM_GPU_FREQ",       "SLURM_TRES_BIND",
      "SLURM_TRES_PER_TASK", "GPU_DEVICE_ORDINAL"};
  for (size_t at = 0; at < sizeof variables / sizeof *variables; at++)
    spank_unsetenv(spank, variables[at]);
  if (place->is_script) spank_unsetenv(spank, "SLURM_JOB_GPUS");
}

static void bind_statically(spank_t spank, const struct slip_place* place, unsigned gpus) {
  uint32_t id = 0;
  struct slip_gpus bound = known_gpus;
  struct slip_gpus closed;
  spank_get_item(spank, S_JOB_ID, &id);
  slip_read_closed(node_folder(), &closed);
  if (known_gpus.count == 0)
    slip_bind(table, id, getppid(), gpus, slip_count_gpus(device_folder()), &closed,
              slip_now_ms() + LOCK_MS, &bound);
  if (bound.count == 0) return;
  char text[SLIP_GPUS_LIMIT * 4];
  snprintf(text, sizeof text, "%u", bound.count);
  spank_setenv(spank, "SLURM_GPUS_ON_NODE", text, 1);
  slip_take_part(&job, place, &bound);
  slip_write_gpus(&bound, text, sizeof text);
  spank_setenv(spank, place->is_script ? "SLURM_JOB_GPUS" : "SLURM_STEP_GPUS", text, 1);
  spank_setenv(spank, "GPU_DEVICE_ORDINAL", text, 1);
  spank_setenv(spank, "CUDA_VISIBLE_DEVICES", text, 1);
  leave_address(spank);
}

// For the hooks, which ask for a page of theirs when a coordinator is there again.
static void leave_address(spank_t spank) {
  char link[PATH_SIZE];
  char folder[PATH_SIZE];
  snprintf(link, sizeof link, "%s/inject", node_folder());
  ssize_t length = readlink(link, folder, sizeof folder - 1);
  if (length <= 0) return;  // there has never been one
  folder[length] = '\0';
  lead_imports(spank, folder);
  spank_setenv(spank, "SLIPSTREAM_NODE", node_folder(), 1);
}

static unsigned number_in(spank_t spank, const char* variable) {
  char text[SLIP_CARRIER_SIZE];
  if (spank_getenv(spank, variable, text, sizeof text) != ESPANK_SUCCESS) return 0;
  return (unsigned)strtoul(text, NULL, 10);
}
