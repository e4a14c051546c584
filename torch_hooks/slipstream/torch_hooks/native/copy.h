/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of memory, and checksums beside them. copying.py is the same in Python. */
#ifndef SLIPSTREAM_NATIVE_COPY_H
#define SLIPSTREAM_NATIVE_COPY_H

#include <stddef.h>
#include <stdint.h>

struct slip_piece {
  void* target;
  const void* source;
  size_t count;
  void* fresh_page; /* the huge page that the target is in, if nothing in it was used yet */
};

/* Memory with a checksum of its own, and what of it is copied, in order. */
struct slip_checked {
  const void* begin;
  size_t count;
  const struct slip_piece* pieces;
  size_t piece_count;
  uint64_t checksum; /* found */
};

void slip_copy(void* target, const void* source, size_t count);
uint32_t slip_crc32c(uint32_t before, const void* bytes, size_t count);

/* On up to so many threads, the caller's being the first. */
void slip_copy_all(const struct slip_piece* pieces, size_t count, unsigned threads);
void slip_check_all(struct slip_checked* all, size_t count, unsigned threads);

#endif
