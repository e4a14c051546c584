/* SPDX-License-Identifier: Apache-2.0 */
/* Hangs the gate into torch, without torch's headers: a RecordFunction callback that is called
 * before each operator. The symbols are looked up; the layout of a callback is that of torch 2.1
 * to 2.13 on x86-64. Python runs known operators after installing and takes the gate away if they
 * were not counted right (native_gate.py). */
#include "gate.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { SCOPES = 10, FUNCTION_SCOPE = 0 };

/* at::RecordFunctionCallback: trivially copyable, so it travels as a C struct does. */
struct callback {
  void** (*start)(void**, const void*);
  void (*end)(const void*, void*);
  double sampling_probability;
  bool scopes[SCOPES];
  bool needs_inputs;
  bool needs_outputs;
  bool needs_ids;
};

static const char ADD[] = "_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE";
static const char REMOVE[] = "_ZN2at14removeCallbackEm";
static const char NAME[] = "_ZNK2at14RecordFunction4nameEv";

static const char* (*name_of)(const void*);
static uint64_t handle;
static atomic_bool open_wide = true; /* in a forked child, and while operators are only counted */
static char counted_name[64];
static pthread_t counted_thread;
static atomic_uint_fast64_t counted;

/* Torch is not loaded into the global scope, so it is asked for by its name; never loaded by us. */
static void* find(const char* symbol) {
  void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return torch ? dlsym(torch, symbol) : NULL;
}

static uint64_t hash_of(const char* name) {
  uint64_t hash = 14695981039346656037u; /* FNV-1a: names are short */
  for (; *name; name++) {
    hash = (hash ^ (unsigned char)*name) * 1099511628211u;
  }
  return hash;
}

static bool has_symbols(void) {
  if (!name_of) {
    name_of = (const char* (*)(const void*))find(NAME);
  }
  return name_of && find(ADD) && find(REMOVE);
}

/* Have `start` called before each operator of every thread; 0, and what is missing, if it cannot
 * be. Any thread may do so: torch's other threads see it at their next operator. */
uint64_t slip_torch_add(void** (*start)(void**, const void*), void (*end)(const void*, void*),
                        const char** missing) {
#if !defined(__x86_64__)
  *missing = "this processor passes results in another way than x86-64";
  return 0;
#endif
  if (!has_symbols()) {
    *missing = "this torch has no at::addGlobalCallback, removeCallback or RecordFunction::name";
    return 0;
  }
  struct callback callback = {.start = start, .end = end, .sampling_probability = 1.0};
  callback.scopes[FUNCTION_SCOPE] = true;
  uint64_t added = ((uint64_t (*)(struct callback))find(ADD))(callback);
  *missing = added ? NULL : "torch did not take the callback";
  return added;
}

void slip_torch_remove(uint64_t added) {
  void (*take_away)(uint64_t) = (void (*)(uint64_t))find(REMOVE);
  if (take_away) {
    take_away(added);
  }
}

const char* slip_torch_name(const void* function) { return name_of(function); }

/* A unique_ptr is returned through a hidden first argument, which is also the result. */
static void** before_operator(void** context, const void* function) {
  *context = NULL;
  const char* name = name_of(function);
  if (!atomic_load_explicit(&open_wide, memory_order_relaxed)) {
    if (slip_cuda_gate_is_open()) {
      slip_cuda_gate_before(hash_of(name));
    } else {
      slip_gate_operator(hash_of(name));
    }
  } else if (counted_name[0] && pthread_equal(counted_thread, pthread_self()) &&
             strcmp(name, counted_name) == 0) {
    counted++;
  }
  return context;
}

static void after_operator(const void* function, void* context) {
  (void)function;
  (void)context;
  if (!atomic_load_explicit(&open_wide, memory_order_relaxed)) {
    slip_cuda_gate_after();
  }
}

static void in_child(void) {
  open_wide = true; /* a loader's worker is not on the GPU, and the gate's locks are the parent's */
}

/* Null if all went well, else what is missing. */
const char* slip_gate_install(void) {
  if (handle) {
    return NULL;
  }
  static bool told_of_forks;
  if (!told_of_forks) {
    told_of_forks = pthread_atfork(NULL, NULL, in_child) == 0;
  }
  open_wide = true;
  const char* missing = NULL;
  handle =
      slip_torch_add(before_operator, slip_cuda_gate_is_open() ? after_operator : NULL, &missing);
  return missing;
}

void slip_gate_remove(void) {
  open_wide = true;
  if (handle) {
    slip_torch_remove(handle);
  }
  handle = 0;
}

/* From here on operators wait. */
void slip_gate_close(void) {
  slip_gate_reset();
  open_wide = false;
}

void slip_gate_count(const char* name) {
  counted = 0;
  counted_thread = pthread_self();
  strncpy(counted_name, name, sizeof counted_name - 1);
}

uint64_t slip_gate_counted(void) {
  counted_name[0] = '\0';
  return counted;
}
