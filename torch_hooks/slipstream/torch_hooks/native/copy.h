/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of memory. copying.py is the same in Python. */
#ifndef SLIPSTREAM_NATIVE_COPY_H
#define SLIPSTREAM_NATIVE_COPY_H

#include <stddef.h>

struct slip_piece {
  void* target;
  const void* source;
  size_t count;
  void* fresh_page; /* the huge page that the target is in, if nothing in it was used yet */
};

void slip_copy(void* target, const void* source, size_t count);
void slip_copy_all(const struct slip_piece* pieces, size_t count, unsigned threads);

#endif
