/* SPDX-License-Identifier: Apache-2.0
 *
 * The select wrapper's board reader as a process of its own, for tests: one request a line on
 * standard input, one answer a line. Built with sanitizers, so that a wrong read ends it.
 *
 *   find TOKEN TASK   ->  none | prefer NAME … | require NAME …      (TASK "-" for none)
 *   watch TOKEN N     ->  how many of N lookups found nothing
 *   names HEX         ->  bad | NAME …
 *   marker HEX        ->  none | TOKEN
 *   crc HEX           ->  the checksum
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advice_board.h"

static char names[1 << 22];
static size_t names_bytes;

static void remember(const char* name, void* context) {
  (void)context;
  size_t bytes = strlen(name);
  if (names_bytes + bytes + 2 > sizeof(names)) return;
  names[names_bytes++] = ' ';
  memcpy(names + names_bytes, name, bytes + 1);
  names_bytes += bytes;
}

static bool expand(const char* list, size_t bytes) {
  names_bytes = 0;
  names[0] = '\0';
  return slip_names_each(list, bytes, remember, NULL) >= 0;
}

/* The bytes as an allocation of exactly their size, so that reading past them is noticed. */
static char* from_hex(const char* text, size_t* bytes) {
  *bytes = strlen(text) / 2;
  char* raw = malloc(*bytes + 1);
  if (!raw) abort();
  for (size_t i = 0; i < *bytes; i++) {
    unsigned value;
    if (sscanf(text + 2 * i, "%2x", &value) != 1) abort();
    raw[i] = (char)value;
  }
  raw = realloc(raw, *bytes ? *bytes : 1);
  if (!raw) abort();
  return raw;
}

static void answer(struct slip_board* board, const char* verb, char* first, char* second) {
  static const char* const kinds[] = {"none", "prefer", "require"};
  size_t bytes = 0;
  if (strcmp(verb, "find") == 0) {
    uint32_t task = second[0] == '-' ? SLIP_ANY_TASK : (uint32_t)strtoul(second, NULL, 10);
    enum slip_kind kind = slip_board_find(board, strtoull(first, NULL, 16), task);
    bool empty = kind == SLIP_NONE || board->slot.names_bytes == 0;
    bool whole = empty || expand(board->slot.names, board->slot.names_bytes);
    printf("%s%s\n", whole ? kinds[kind] : "bad", !empty && whole ? names : "");
  } else if (strcmp(verb, "watch") == 0) {
    unsigned long missed = 0, count = strtoul(second, NULL, 10);
    uint64_t token = strtoull(first, NULL, 16);
    for (unsigned long i = 0; i < count; i++)
      if (slip_board_find(board, token, SLIP_ANY_TASK) == SLIP_NONE) missed++;
    printf("%lu\n", missed);
  } else if (strcmp(verb, "sign") == 0) {
    slip_board_sign(board);
    printf("%s\n", board->sign_fd >= 0 ? "signed" : "none");
  } else if (strcmp(verb, "names") == 0) {
    char* raw = from_hex(first, &bytes);
    printf("%s\n", expand(raw, bytes) ? names : "bad");
    free(raw);
  } else if (strcmp(verb, "marker") == 0) {
    char* raw = from_hex(first, &bytes);
    uint64_t token;
    if (bytes == 0 || raw[bytes - 1] != '\0') abort(); /* a C string, as Slurm's comment is */
    if (slip_marker_token(raw, &token))
      printf("%016" PRIx64 "\n", token);
    else
      printf("none\n");
    free(raw);
  } else {
    char* raw = from_hex(first, &bytes);
    printf("%" PRIu32 "\n", slip_crc32(raw, bytes));
    free(raw);
  }
}

int main(int count, char** words) {
  static struct slip_board board;
  static char line[1 << 20];
  if (count != 2 || !slip_board_init(&board, words[1])) return 2;
  while (fgets(line, sizeof(line), stdin)) {
    char* rest = line;
    const char* verb = strsep(&rest, " \n");
    char* first = rest ? strsep(&rest, " \n") : NULL;
    char* second = rest ? strsep(&rest, " \n") : NULL;
    answer(&board, verb, first ? first : line + strlen(line), second ? second : line);
    fflush(stdout);
  }
  slip_board_close(&board);
  return 0;
}
