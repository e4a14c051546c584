# SPDX-License-Identifier: Apache-2.0
"""What a node leaves to a guest beside a guaranteed owner: the node machine itself decides it.

For each pair of kinds the machine of core/node watches an owner's mini-batches in virtual time and
sets the guest's share, as it does on a real node. The model under it has two parts, both measured:

* the gate lets a guest launch only while the owner leaves the GPU idle: the guest's speed is its
  share, and at most the idle part;
* what an owner still feels is a small part of what it would without the gate (our colocation
  benchmark: at worst 1.8 % where it was 55 % without), in proportion to the guest's speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.core.classes import JobClass, Role
from slipstream.core.node.commands import SetShare
from slipstream.core.node.events import GpuFound, JobArrived, JobReported, NodeJob, TimerFired
from slipstream.core.node.machine import NodeMachine
from slipstream.simulator.measured import GPU_MIB

if TYPE_CHECKING:
    from slipstream.simulator.measured import Measured

FELT: Final = 1.8 / 55.0
_ALONE_S: Final = 15.0
_TOGETHER_S: Final = 300.0
_TICK_S: Final = 0.5
_NOISE: Final = 0.02
"""Standard deviation of an owner's mini-batch times by themselves."""
_OWNER: Final = 1
_GUEST: Final = 2


class NodeGuard:
    """Speeds of an owner and its guest under guard; 1 is the speed alone. Worked out when asked."""

    def __init__(self, measured: Measured, seed: int = 1) -> None:
        self._measured = measured
        self._seed = seed
        self._known: dict[tuple[int, int], tuple[float, float]] = {}

    def owner(self, owner: int, guest: int) -> float:
        """The owner's, by the kinds of both."""
        return self._speeds(owner, guest)[0]

    def guest(self, owner: int, guest: int) -> float:
        """The guest's."""
        return self._speeds(owner, guest)[1]

    def _speeds(self, owner: int, guest: int) -> tuple[float, float]:
        pair = (owner, guest)
        if pair not in self._known:
            self._known[pair] = _Pair(self._measured, owner, guest, self._seed).speeds()
        return self._known[pair]


class _Pair:
    """One owner and one guest on one GPU of one node, some minutes long."""

    def __init__(self, measured: Measured, owner: int, guest: int, seed: int) -> None:
        kind = measured.kinds[owner]
        self._minibatch_s = 1.0 / kind.minibatches_per_s
        self._idle = 1.0 - kind.use_pct / 100.0
        self._felt = FELT * (1.0 / measured.beside[owner][guest] - 1.0)
        self._share = 0.0
        self._machine = NodeMachine()
        self._rng = np.random.default_rng((seed, owner, guest))
        self._done = 0
        self._boundary_s = 0.0

    def speeds(self) -> tuple[float, float]:
        """Of both, over the time they are together."""
        self._tell(GpuFound(0.0, "gpu", GPU_MIB))
        self._tell(JobArrived(0.0, _job(_OWNER, JobClass.GUARANTEED, Role.OWNER)))
        alone_s = self._train(_ALONE_S)
        self._share = 1.0
        self._tell(JobArrived(alone_s, _job(_GUEST, JobClass.OPPORTUNISTIC, Role.GUEST)))
        done, guest_s, now_s = self._done, 0.0, alone_s
        while now_s < alone_s + _TOGETHER_S:
            speed = self._guest_speed()
            before_s, now_s = now_s, self._train(now_s + _TICK_S)
            guest_s += speed * (now_s - before_s)
        lasted_s = now_s - alone_s
        owner = (self._done - done) * self._minibatch_s / lasted_s
        return min(1.0, owner), guest_s / lasted_s

    def _guest_speed(self) -> float:
        return min(self._share, self._idle)

    def _train(self, until_s: float) -> float:
        """The owner's mini-batches until then, and what the machine says to them."""
        while self._boundary_s < until_s:
            slower = 1.0 + self._felt * self._guest_speed()
            count = max(1, int(_TICK_S / self._minibatch_s))
            noise = self._rng.normal(0.0, _NOISE / count**0.5)
            self._boundary_s += count * self._minibatch_s * slower * (1.0 + noise)
            self._done += count
            self._tell(
                JobReported(
                    at_s=self._boundary_s,
                    job_id=_OWNER,
                    minibatches=self._done,
                    boundary_at_s=self._boundary_s,
                )
            )
            due_s = self._machine.wakes_at_s()
            if due_s is not None and due_s <= self._boundary_s:
                self._tell(TimerFired(self._boundary_s))
        return self._boundary_s

    def _tell(self, event: GpuFound | JobArrived | JobReported | TimerFired) -> None:
        for command in self._machine.handle(event):
            if isinstance(command, SetShare) and command.job_id == _GUEST:
                self._share = command.share_pct / 100.0


def _job(job_id: int, job_class: JobClass, role: Role) -> NodeJob:
    return NodeJob(job_id=job_id, job_class=job_class, role=role, gpus=("gpu",))
