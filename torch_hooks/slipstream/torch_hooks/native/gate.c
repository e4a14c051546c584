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
  } else if (counted_name[0] && strcmp(name, counted_name) == 0) {
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
#if !defined(__x86_64__)
  return "this processor passes results in another way than x86-64";
#endif
  if (handle) {
    return NULL;
  }
  uint64_t (*add)(struct callback) = (uint64_t (*)(struct callback))find(ADD);
  name_of = (const char* (*)(const void*))find(NAME);
  if (!add || !name_of || !find(REMOVE)) {
    return "this torch has no at::addGlobalCallback, removeCallback or RecordFunction::name";
  }
  static bool told_of_forks;
  if (!told_of_forks) {
    told_of_forks = pthread_atfork(NULL, NULL, in_child) == 0;
  }
  open_wide = true;
  struct callback callback = {.start = before_operator, .sampling_probability = 1.0};
  callback.scopes[FUNCTION_SCOPE] = true;
  if (slip_cuda_gate_is_open()) {
    callback.end = after_operator;
  }
  handle = add(callback);
  return handle ? NULL : "torch did not take the callback";
}

void slip_gate_remove(void) {
  void (*take_away)(uint64_t) = (void (*)(uint64_t))find(REMOVE);
  open_wide = true;
  if (handle && take_away) {
    take_away(handle);
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
  strncpy(counted_name, name, sizeof counted_name - 1);
}

uint64_t slip_gate_counted(void) {
  counted_name[0] = '\0';
  return counted;
}
