// SPDX-License-Identifier: Apache-2.0
// Asks the node's coordinator what a task is to find in its environment. Knows nothing of Slurm.
//
// One line of text there, lines back: "env NAME=value", "unset NAME", and "ok" as the last. All
// within one deadline. An answer that is not wholly understood is no answer. "wait" as the first
// line: somebody is there who has many to answer at this moment, and gets longer for the rest.
#ifndef SLIPSTREAM_SPANK_NODE_SOCKET_H
#define SLIPSTREAM_SPANK_NODE_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SLIP_ANSWER_SIZE = 32768, SLIP_ANSWER_LINES = 128 };
enum { SLIP_HEARD_MS = 3000 };

struct slip_order {
  const char* name;
  const char* value;  // NULL: unset it
};

struct slip_answer {
  char text[SLIP_ANSWER_SIZE];  // the orders point into it
  struct slip_order orders[SLIP_ANSWER_LINES];
  size_t count;
};

int64_t slip_now_ms(void);

// False with a reason for the log if there is no good answer before `deadline_ms` of slip_now_ms.
bool slip_ask_node(const char* socket_path, const char* request, int64_t deadline_ms,
                   struct slip_answer* answer, const char** why);

// Cuts `answer->text` into orders. False if any line is not understood or the "ok" is missing.
bool slip_read_answer(struct slip_answer* answer);

#endif
