/* SPDX-License-Identifier: Apache-2.0 */
/* Books of pieces in a list: torch asks for some hundred large ones, and keeps them. Room under the
 * cap is booked before CUDA is asked and given back after CUDA has it back, so that threads
 * together never go beyond the cap. CUDA is called with no lock held, since it may wait for the
 * device. */
#include "cuda_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "cuda_calls.h"

struct piece {
  char* begin;
  uint64_t bytes;
  int device;
  bool managed;
  bool moving; /* somebody without the lock is about to move it; it is given back by that one */
  bool given_back;
  enum slip_cuda_place place;
  struct piece* next;
};

static pthread_mutex_t books = PTHREAD_MUTEX_INITIALIZER;
static struct piece* pieces;
static struct slip_cuda_counts counts[SLIP_CUDA_MAX_DEVICES];
static bool capped[SLIP_CUDA_MAX_DEVICES];

static bool has_room(int device, uint64_t bytes) {
  const struct slip_cuda_counts* of = &counts[device];
  if (!capped[device]) return true;
  return of->device_bytes <= of->cap_bytes && bytes <= of->cap_bytes - of->device_bytes;
}

static void book(int device, uint64_t bytes) {
  struct slip_cuda_counts* of = &counts[device];
  of->device_bytes += bytes;
  if (of->device_bytes > of->most_device_bytes) of->most_device_bytes = of->device_bytes;
}

static bool book_if_room(int device, uint64_t bytes) {
  pthread_mutex_lock(&books);
  bool room = has_room(device, bytes);
  if (room) book(device, bytes);
  pthread_mutex_unlock(&books);
  return room;
}

static void count_one(uint64_t* counter) {
  pthread_mutex_lock(&books);
  ++*counter;
  pthread_mutex_unlock(&books);
}

/* An error that we have dealt with must not be found by whoever calls CUDA next. */
static bool went_well(int error) {
  if (error != SLIP_CUDA_SUCCESS) slip_cuda_calls()->last_error();
  return error == SLIP_CUDA_SUCCESS;
}

static struct slip_cuda_location location(bool on_host, int device) {
  struct slip_cuda_location there = {
      .type = on_host ? SLIP_CUDA_LOCATION_HOST : SLIP_CUDA_LOCATION_DEVICE,
      .id = on_host ? 0 : device};
  return there;
}

static void advise(const struct piece* one, int advice, bool on_host) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  int error =
      cuda->advise_13
          ? cuda->advise_13(one->begin, one->bytes, advice, location(on_host, one->device))
          : cuda->advise(one->begin, one->bytes, advice, on_host ? SLIP_CUDA_CPU : one->device);
  if (!went_well(error)) count_one(&counts[one->device].unadvised);
}

static bool prefetch(const struct piece* one, bool to_host, void* stream) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  return went_well(
      cuda->prefetch_13
          ? cuda->prefetch_13(one->begin, one->bytes, location(to_host, one->device), 0, stream)
          : cuda->prefetch(one->begin, one->bytes, to_host ? SLIP_CUDA_CPU : one->device, stream));
}

static void* on_device(uint64_t bytes, int device) {
  void* begin = NULL;
  if (!book_if_room(device, bytes)) return NULL;
  if (went_well(slip_cuda_calls()->malloc_device(&begin, bytes))) return begin;
  pthread_mutex_lock(&books);
  counts[device].device_bytes -= bytes;
  ++counts[device].refused;
  pthread_mutex_unlock(&books);
  return NULL;
}

static void* on_host(uint64_t bytes) {
  void* begin = NULL;
  bool well = went_well(
      slip_cuda_calls()->malloc_managed(&begin, bytes, (unsigned)SLIP_CUDA_ATTACH_GLOBAL));
  return well ? begin : NULL;
}

static void* allocate(uint64_t bytes, int device) {
  struct piece* piece = malloc(sizeof *piece);
  if (piece == NULL) return NULL;
  *piece = (struct piece){.bytes = bytes, .device = device, .place = SLIP_CUDA_ON_DEVICE};
  piece->begin = on_device(bytes, device);
  if (piece->begin == NULL) {
    piece->begin = on_host(bytes);
    piece->managed = true;
    piece->place = SLIP_CUDA_ON_HOST;
  }
  if (piece->begin == NULL) {
    free(piece);
    count_one(&counts[device].failed);
    return NULL;
  }
  if (piece->managed) {
    advise(piece, SLIP_CUDA_PREFERRED_LOCATION, true);
    advise(piece, SLIP_CUDA_ACCESSED_BY, false);
  }
  void* begin = piece->begin;
  pthread_mutex_lock(&books);
  if (piece->managed) counts[device].host_bytes += bytes;
  piece->next = pieces;
  pieces = piece;
  pthread_mutex_unlock(&books);
  return begin;
}

/* On its device, whatever device the thread is on. */
static int enter(int device) {
  const struct slip_cuda_calls* cuda = slip_cuda_calls();
  int before = device;
  went_well(cuda->get_device(&before));
  if (before != device) went_well(cuda->set_device(device));
  return before;
}

static void leave(int before, int device) {
  if (before != device) went_well(slip_cuda_calls()->set_device(before));
}

void* slip_cuda_alloc(ssize_t size, int device, void* stream) {
  (void)stream;
  if (slip_cuda_calls() == NULL || size <= 0 || device < 0 || device >= SLIP_CUDA_MAX_DEVICES) {
    return NULL;
  }
  int before = enter(device);
  void* begin = allocate((uint64_t)size, device);
  leave(before, device);
  return begin;
}

/* Out of the books, before CUDA could hand out the same address again. */
static struct piece* taken_out(const void* begin) {
  for (struct piece** at = &pieces; *at != NULL; at = &(*at)->next) {
    struct piece* one = *at;
    if (one->begin == begin && !one->given_back) {
      if (one->moving) {
        one->given_back = true; /* who moves it gives it back */
        return one;
      }
      *at = one->next;
      return one;
    }
  }
  return NULL;
}

static void give_back(struct piece* one) {
  int before = enter(one->device);
  went_well(slip_cuda_calls()->free(one->begin));
  leave(before, one->device);
  pthread_mutex_lock(&books);
  if (one->place == SLIP_CUDA_ON_DEVICE) counts[one->device].device_bytes -= one->bytes;
  if (one->place == SLIP_CUDA_ON_HOST) counts[one->device].host_bytes -= one->bytes;
  pthread_mutex_unlock(&books);
  free(one);
}

/* What it was, we know better than the caller. */
void slip_cuda_free(void* pointer, ssize_t size, int device, void* stream) {
  (void)size, (void)stream;
  if (pointer == NULL || slip_cuda_calls() == NULL) return;
  bool known = device >= 0 && device < SLIP_CUDA_MAX_DEVICES;
  pthread_mutex_lock(&books);
  struct piece* one = taken_out(pointer);
  bool moves = one != NULL && one->moving;
  if (one == NULL) ++counts[known ? device : 0].unknown;
  pthread_mutex_unlock(&books);
  if (one != NULL && !moves) give_back(one);
}

void slip_cuda_cap(int device, uint64_t bytes) {
  if (device < 0 || device >= SLIP_CUDA_MAX_DEVICES) return;
  pthread_mutex_lock(&books);
  capped[device] = true;
  counts[device].cap_bytes = bytes;
  pthread_mutex_unlock(&books);
}

/* A piece to move, booked on the device while it moves in either direction; null if all is well. */
static struct piece* begin_move(int device, bool* to_host) {
  struct piece* chosen = NULL;
  pthread_mutex_lock(&books);
  *to_host = capped[device] && counts[device].device_bytes > counts[device].cap_bytes;
  for (struct piece* one = pieces; one != NULL && chosen == NULL; one = one->next) {
    if (one->device != device || !one->managed || one->moving) continue;
    if (*to_host ? one->place == SLIP_CUDA_ON_DEVICE
                 : one->place == SLIP_CUDA_ON_HOST && has_room(device, one->bytes)) {
      chosen = one;
    }
  }
  if (chosen != NULL) {
    chosen->moving = true;
    if (!*to_host) book(device, chosen->bytes);
  }
  pthread_mutex_unlock(&books);
  return chosen;
}

/* Returns a piece that was given back meanwhile, out of the books, or null. */
static struct piece* end_move(struct piece* one, bool to_host, bool moved) {
  struct slip_cuda_counts* of = &counts[one->device];
  pthread_mutex_lock(&books);
  one->moving = false;
  if (moved == to_host) of->device_bytes -= one->bytes; /* it left, or did not come */
  if (moved && to_host) of->host_bytes += one->bytes;
  if (moved && !to_host) of->host_bytes -= one->bytes;
  if (moved) one->place = to_host ? SLIP_CUDA_ON_HOST : SLIP_CUDA_ON_DEVICE;
  struct piece* gone = NULL;
  if (one->given_back) {
    one->given_back = false;
    gone = taken_out(one->begin);
  }
  pthread_mutex_unlock(&books);
  return gone;
}

uint64_t slip_cuda_settle(int device, uint64_t at_most_bytes, void* stream) {
  if (slip_cuda_calls() == NULL || device < 0 || device >= SLIP_CUDA_MAX_DEVICES) return 0;
  uint64_t moved_bytes = 0;
  bool to_host = false;
  int before = enter(device);
  struct piece* one = NULL;
  while (moved_bytes < at_most_bytes && (one = begin_move(device, &to_host)) != NULL) {
    uint64_t bytes = one->bytes;
    advise(one, SLIP_CUDA_PREFERRED_LOCATION, to_host);
    bool moved = prefetch(one, to_host, stream);
    if (!moved) advise(one, SLIP_CUDA_PREFERRED_LOCATION, !to_host);
    struct piece* gone = end_move(one, to_host, moved);
    if (gone != NULL) give_back(gone);
    if (!moved) break;
    moved_bytes += bytes;
  }
  leave(before, device);
  return moved_bytes;
}

int slip_cuda_where(const void* address) {
  enum slip_cuda_place place = SLIP_CUDA_NOWHERE;
  pthread_mutex_lock(&books);
  for (const struct piece* one = pieces; one != NULL && place == SLIP_CUDA_NOWHERE;
       one = one->next) {
    const char* at = address;
    if (at >= one->begin && at < one->begin + one->bytes) place = one->place;
  }
  pthread_mutex_unlock(&books);
  return (int)place;
}

void slip_cuda_count(int device, struct slip_cuda_counts* told) {
  if (device < 0 || device >= SLIP_CUDA_MAX_DEVICES) return;
  pthread_mutex_lock(&books);
  *told = counts[device];
  pthread_mutex_unlock(&books);
}
