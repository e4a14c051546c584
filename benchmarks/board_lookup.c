/* SPDX-License-Identifier: Apache-2.0
 *
 * Times single lookups of the advice board's reader: board_lookup BOARD COUNT < tokens
 * Prints the nanoseconds of each lookup, one a line, the clock's own share taken off.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "advice_board.h"

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t clock_ns(void) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 10000; i++) {
    uint64_t from = now_ns(), took = now_ns() - from;
    if (took < least) least = took;
  }
  return least;
}

int main(int count, char** words) {
  static struct slip_board board;
  static uint64_t tokens[1 << 16];
  size_t known = 0;
  if (count != 3 || !slip_board_init(&board, words[1])) return 2;
  while (known < sizeof(tokens) / sizeof(*tokens) && scanf("%" SCNx64, &tokens[known]) == 1)
    known++;
  size_t lookups = strtoul(words[2], NULL, 10);
  uint64_t* took_ns = calloc(lookups, sizeof(*took_ns));
  if (!took_ns || !known) return 2;
  uint64_t clock = clock_ns();
  size_t found = 0;
  for (size_t i = 0; i < lookups; i++) {
    uint64_t token = tokens[i * 7919 % known];
    uint64_t from = now_ns();
    enum slip_kind kind = slip_board_find(&board, token, SLIP_ANY_TASK);
    uint64_t took = now_ns() - from;
    took_ns[i] = took > clock ? took - clock : 0;
    found += kind != SLIP_NONE;
  }
  fprintf(stderr, "%zu\n", found);
  for (size_t i = 0; i < lookups; i++) printf("%" PRIu64 "\n", took_ns[i]);
  free(took_ns);
  return 0;
}
