// SPDX-License-Identifier: Apache-2.0
#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct slip_job slip_unknown_job = {"none", "none", "none", "node", 0, 0, false};

static bool take(struct slip_job* job, const char* key, const char* value);
static bool copy_word(char word[SLIP_WORD_SIZE], const char* value);
static bool take_gpus(struct slip_job* job, const char* value);
static bool take_number(unsigned* number, const char* value);

bool slip_read_carrier(const char* text, struct slip_job* job) {
  char copy[SLIP_CARRIER_SIZE];
  *job = slip_unknown_job;
  if (strlen(text) >= sizeof copy) return false;
  strcpy(copy, text);
  struct slip_job found = slip_unknown_job;
  char* rest = NULL;
  for (char* pair = strtok_r(copy, ",", &rest); pair; pair = strtok_r(NULL, ",", &rest)) {
    char* equals = strchr(pair, '=');
    if (!equals) return false;
    *equals = '\0';
    if (!take(&found, pair, equals + 1)) return false;
  }
  if (strcmp(found.class_name, "none") == 0) return false;
  *job = found;
  return true;
}

bool slip_write_carrier(const struct slip_job* job, char* text, size_t size) {
  char tasks[SLIP_WORD_SIZE] = "";
  if (job->tasks_per_gpu) snprintf(tasks, sizeof tasks, ",tasks_per_gpu=%u", job->tasks_per_gpu);
  int length =
      snprintf(text, size, "class=%s,role=%s,gpus=%s:%u,token=%s%s%s", job->class_name, job->role,
               job->per, job->count, job->token, tasks, job->keeps_guests_away ? ",share=no" : "");
  return length > 0 && (size_t)length < size;
}

unsigned slip_gpus_on_node(const struct slip_job* job, const struct slip_place* place) {
  unsigned nodes = place->nodes ? place->nodes : 1;
  if (strcmp(job->per, "job") == 0) return (job->count + nodes - 1) / nodes;
  if (strcmp(job->per, "task") == 0) {
    unsigned tasks = place->tasks_on_node ? place->tasks_on_node : 1;
    return job->count * tasks;
  }
  return job->count;
}

unsigned slip_gpus_per_task(const struct slip_job* job, const struct slip_place* place) {
  if (place->is_script) return 0;
  if (job->tasks_per_gpu) return 1;
  return strcmp(job->per, "task") == 0 ? job->count : 0;
}

static bool take(struct slip_job* job, const char* key, const char* value) {
  if (strcmp(key, "class") == 0) return copy_word(job->class_name, value);
  if (strcmp(key, "token") == 0) return copy_word(job->token, value);
  if (strcmp(key, "gpus") == 0) return take_gpus(job, value);
  if (strcmp(key, "tasks_per_gpu") == 0) return take_number(&job->tasks_per_gpu, value);
  if (strcmp(key, "share") == 0) job->keeps_guests_away = strcmp(value, "no") == 0;
  if (strcmp(key, "role") == 0)
    return (strcmp(value, "owner") == 0 || strcmp(value, "guest") == 0 ||
            strcmp(value, "none") == 0) &&
           copy_word(job->role, value);
  return true;  // a key of a later version
}

static bool copy_word(char word[SLIP_WORD_SIZE], const char* value) {
  size_t length = strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789");
  if (length == 0 || value[length] || length >= SLIP_WORD_SIZE) return false;
  strcpy(word, value);
  return true;
}

static bool take_gpus(struct slip_job* job, const char* value) {
  static const char* const pers[] = {"node", "job", "task", "socket"};
  for (size_t at = 0; at < sizeof pers / sizeof *pers; at++) {
    size_t length = strlen(pers[at]);
    if (strncmp(value, pers[at], length) != 0 || value[length] != ':') continue;
    if (!take_number(&job->count, value + length + 1)) return false;
    strcpy(job->per, pers[at]);
    return true;
  }
  return false;
}

static bool take_number(unsigned* number, const char* value) {
  size_t digits = strspn(value, "0123456789");
  if (digits == 0 || digits > 5 || value[digits]) return false;
  *number = (unsigned)strtoul(value, NULL, 10);
  return true;
}
