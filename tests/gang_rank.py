# SPDX-License-Identifier: Apache-2.0
"""A rank as its page shows it, which meets the gang's other rank in each mini-batch.

    python gang_rank.py PAGE FD

It does as its page asks after the mini-batch that is named, as hooks do. In between it waits for
the other rank, as in a collective: who goes on while the other stands still waits there.
"""

from __future__ import annotations

import os
import sys
import time

from slipstream.torch_hooks import block
from slipstream.wire.control_block import Capability, Directive, Phase, Request

ABLE = Capability.BOUNDARIES | Capability.PAUSE | Capability.PARKABLE | Capability.GATEABLE
MINIBATCH_S = 0.01


def main(page: str, peer: int) -> None:
    """Until it is killed."""
    held = block.claim(page)
    assert held
    held.write(phase=Phase.TRAINING, capabilities=ABLE)
    asked, done = Directive(), 0
    while True:
        asked = held.news() or asked
        held.write(directive_epoch=asked.epoch)
        waits = asked.request in (Request.PAUSE, Request.PARK)
        if waits and done >= asked.armed_for_minibatch:
            phase = Phase.PARKED if asked.request == Request.PARK and done else Phase.PAUSED
            held.write(phase=phase)
            time.sleep(0.005)
            continue
        held.write(phase=Phase.TRAINING)
        time.sleep(MINIBATCH_S)
        os.write(peer, b".")
        if not os.read(peer, 1):
            return
        done += 1
        held.boundary(done, time.monotonic_ns(), int(MINIBATCH_S * 1e9))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
