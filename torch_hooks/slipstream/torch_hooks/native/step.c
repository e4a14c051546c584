/* SPDX-License-Identifier: Apache-2.0 */
/* A boundary at which nothing happens, which is almost every one: counted here in well under a
 * microsecond and a few cache lines, where Python's way touches hundreds that the training had in
 * use. Whatever is not plain is left alone, all of it, and Python does it: another thread, a step
 * inside a step, another optimizer, a directive, a lease that is over.
 *
 * Python calls this as functions of its own. They are made without its headers, of the part of its
 * binary interface that is the same since 3.7. */
#include "step.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "gate.h"

enum { NO_ARGUMENTS = 4, ONE_ARGUMENT = 8 };                     /* METH_NOARGS, METH_O */
enum { FIRST_MINIBATCHES = 8, PACE_SHIFT = 3, LEAST_NS = 1000 }; /* as in pace.py */

/* PyMethodDef. */
struct method {
  const char* name;
  void* (*function)(void* self, void* argument);
  int flags;
  const char* documentation;
};

static struct {
  uint64_t thread; /* 0: nobody is followed */
  struct slip_steps* steps;
  struct slip_course* course;
  struct slip_pace* pace;
  struct slip_control_up* up;
  const struct slip_control_down* down;
} followed;

static void* python_true;
static void* python_false;
static void (*add_reference)(void*);

static bool is_followed(void) {
  return followed.thread && followed.thread == (uint64_t)pthread_self();
}

static uint64_t paced(struct slip_pace* pace, uint64_t took_ns) {
  uint64_t mean = pace->duration_ns;
  if (pace->seen < FIRST_MINIBATCHES) {
    uint64_t least = pace->seen && mean < took_ns ? mean : took_ns;
    pace->seen++;
    pace->duration_ns = least > LEAST_NS ? least : LEAST_NS;
    return pace->duration_ns;
  }
  if (took_ns > mean << 1) {
    took_ns = mean << 1;
  } else if (took_ns < mean >> 1) {
    took_ns = mean >> 1;
  }
  mean = (uint64_t)((int64_t)mean + (((int64_t)took_ns - (int64_t)mean) >> PACE_SHIFT));
  pace->duration_ns = mean > LEAST_NS ? mean : LEAST_NS;
  return mean;
}

static void store(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static void publish(uint64_t minibatches, uint64_t now_ns, uint64_t minibatch_ns) {
  struct slip_control_up* up = followed.up;
  uint64_t sequence = up->sequence;
  store(&up->sequence, sequence + 1);
  store(&up->minibatches, minibatches);
  store(&up->last_boundary_ns, now_ns);
  store(&up->minibatch_ns, minibatch_ns);
  store(&up->sequence, sequence + 2);
}

static bool step_begins(void) {
  if (!is_followed() || followed.steps->depth) {
    return false;
  }
  followed.steps->depth = 1;
  return true;
}

static bool step_ends(uint64_t optimizer) {
  struct slip_steps* steps = followed.steps;
  struct slip_course* course = followed.course;
  if (!is_followed() || steps->depth != 1 || steps->leader != optimizer || !course->quiet) {
    return false;
  }
  uint64_t now_ns = slip_now_ns();
  if (followed.down->lease_until_ns < now_ns ||
      __atomic_load_n(&followed.down->sequence, __ATOMIC_ACQUIRE) != course->told) {
    return false;
  }
  steps->depth = 0;
  steps->passed = 0;
  course->minibatches++;
  uint64_t took_ns = now_ns > course->began_ns ? now_ns - course->began_ns : 0;
  publish(course->minibatches, now_ns, paced(followed.pace, took_ns));
  course->began_ns = now_ns;
  return true;
}

static void* answer(bool yes) {
  void* object = yes ? python_true : python_false;
  add_reference(object);
  return object;
}

static void* call_begins(void* self, void* nothing) {
  (void)self, (void)nothing;
  return answer(step_begins());
}

static void* call_ends(void* self, void* optimizer) {
  (void)self;
  return answer(step_ends((uint64_t)(uintptr_t)optimizer));
}

struct method slip_step_methods[] = {
    {"step_begins", call_begins, NO_ARGUMENTS, NULL},
    {"step_ends", call_ends, ONE_ARGUMENT, NULL},
};

/* Whether Python is there; with its True and False. */
bool slip_step_prepare(void* yes, void* no) {
  python_true = yes;
  python_false = no;
  add_reference = (void (*)(void*))dlsym(RTLD_DEFAULT, "Py_IncRef");
  return add_reference != NULL;
}

void slip_step_follow(uint64_t thread, struct slip_steps* steps, struct slip_course* course,
                      struct slip_pace* pace, struct slip_control_up* up,
                      const struct slip_control_down* down) {
  followed.steps = steps;
  followed.course = course;
  followed.pace = pace;
  followed.up = up;
  followed.down = down;
  followed.thread = thread;
}

void slip_step_forget(void) { followed.thread = 0; }
