/* SPDX-License-Identifier: Apache-2.0 */
/* What Python and step.c share of a training: boundaries.py, session.py and pace.py have the same
 * structures and do the same with them, for every case there is. */
#ifndef SLIPSTREAM_NATIVE_STEP_H
#define SLIPSTREAM_NATIVE_STEP_H

#include <stdint.h>

#include "../../wire/control_block.h"

/* How deep a thread is in steps, and whose steps it follows. */
struct slip_steps {
  uint64_t depth;
  uint64_t passed;
  uint64_t leader; /* the address of an optimizer, or 0 */
};

struct slip_course {
  uint64_t minibatches;
  uint64_t began_ns; /* the mini-batch that is being computed */
  uint64_t quiet;    /* nothing is asked for, or ever was that is not done */
  uint64_t told;     /* the sequence of the directive that was last read */
};

struct slip_pace {
  uint64_t seen;
  uint64_t duration_ns;
};

void slip_step_follow(uint64_t thread, struct slip_steps* steps, struct slip_course* course,
                      struct slip_pace* pace, struct slip_control_up* up,
                      const struct slip_control_down* down);
void slip_step_forget(void);

#endif
