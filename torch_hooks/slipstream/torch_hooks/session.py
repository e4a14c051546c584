# SPDX-License-Identifier: Apache-2.0
"""What a training process does at a boundary: say how far it is, read what is asked, keep order.

While the lease holds that is all. When it is lost, an owner runs free and a guest passes the baton.
"""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import TYPE_CHECKING

from slipstream.torch_hooks.baton import DEFAULT_SLICE_MS, SLICE_VARIABLE, Baton
from slipstream.torch_hooks.pace import Pace
from slipstream.wire.control_block import Capability, Phase, Role

if TYPE_CHECKING:
    from slipstream.torch_hooks.block import Block
    from slipstream.torch_hooks.gate import Gate
    from slipstream.torch_hooks.notes import Notes
    from slipstream.torch_hooks.owner_waits import OwnerWaits
    from slipstream.wire.control_block import Directive

_ALL_OF_IT = 100


class Session:
    """One process with its page, from attaching to detaching."""

    def __init__(self, block: Block, notes: Notes) -> None:
        self.block = block
        self.minibatches = 0
        self.directive: Directive | None = None
        self._notes = notes
        self._pace = Pace()
        self._began_ns = monotonic_ns()
        self._baton = _baton(block, notes)
        self._leases_lost = 0
        self._lost = False
        self._quiet = False
        self._baton_waited_ns = 0
        self._gate: Gate | None = None
        self.waits = _waits(block, notes)
        self._slept_ns = 0
        block.write(
            phase=Phase.LOADING,
            capabilities=Capability.BOUNDARIES
            | Capability.GATEABLE
            | (Capability.BATON if self._baton else 0),
        )

    def boundary(self) -> None:
        """Between two mini-batches. Almost always quick: each microsecond here is the user's."""
        now_ns = monotonic_ns()
        self.minibatches += 1
        if self._gate is not None:
            self._leave_out_sleep(self._gate, now_ns)
        pace_ns = self._pace.add(now_ns - self._began_ns)
        if self.block.boundary(self.minibatches, now_ns, pace_ns) and self._quiet:
            self._began_ns = now_ns
        else:
            self._look_up(now_ns)
            self._began_ns = monotonic_ns()  # waiting is not training

    def end(self) -> None:
        """The last thing this process says."""
        self.remove_gate()
        if self.waits:
            self.waits.leave()
        if self._baton:
            self._baton.pass_on()
        self.block.write(phase=Phase.ENDED, problems=self._notes.total)
        self.block.close()

    def abandon(self) -> None:
        """In a forked child: the page, the word and the batons are the parent's."""
        if self.waits:
            self.waits.forget()
        if self._baton:
            self._baton.pass_on()  # closes this process's copies; the parent goes on holding
        self.block.close()

    def remove_gate(self) -> None:
        """Hold nothing up any more."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.remove()

    def _look_up(self, now_ns: int) -> None:
        """Something is new: the first mini-batch, a directive, a lease lost or back."""
        if self.minibatches == 1:
            self.block.write(phase=Phase.TRAINING)
        directive = self.block.news()
        if directive is not None:
            self.directive = directive
            self._heed_share(directive.share_pct)
            self.block.write(directive_epoch=directive.epoch, problems=self._notes.total)
        if self.block.lease_until_ns < now_ns:
            self._without_lease()
        elif self._lost:
            self._lease_is_back()
        if self._gate is not None and not self._lost:
            self._gate.at_boundary(self.directive.epoch if self.directive else 0)
            self._slept_ns = self._gate.slept_ns
        self._quiet = not self._lost and self._gate is None

    def _heed_share(self, share_pct: int) -> None:
        """A gate is there only while it is needed: it costs each operator a little."""
        if share_pct >= _ALL_OF_IT:
            self.remove_gate()
        elif self._gate is None:
            from slipstream.torch_hooks import gate  # noqa: PLC0415 (paid for by those who need it)

            self._gate = gate.install(self.block, self._notes)

    def _leave_out_sleep(self, gate: Gate, now_ns: int) -> None:
        """Being held up is not training; threads may have been held up at the same time."""
        slept_ns = gate.slept_ns
        self._began_ns = min(now_ns, self._began_ns + slept_ns - self._slept_ns)
        self._slept_ns = slept_ns

    def _without_lease(self) -> None:
        if not self._lost:
            self._lost = True
            self._leases_lost += 1
            self._notes.problem("lease lost", "the node's coordinator does not answer for its GPUs")
            self.block.write(leases_lost=self._leases_lost, problems=self._notes.total)
        baton = self._baton
        if baton is None or baton.slice_goes_on:
            return
        baton.pass_on()
        self.block.write(phase=Phase.WAITING_FOR_BATON)
        self._wait(baton)

    def _wait(self, baton: Baton) -> None:
        try:
            wait = baton.take(self._has_lease)
        except OSError as error:
            self._baton = None
            self._notes.problem("no baton", f"{error}; this guest runs without it")
            self.block.write(phase=Phase.TRAINING, problems=self._notes.total)
            return
        if wait.impatient:
            self._notes.problem(
                "baton did not come", f"{wait.waited_ns / 1e9:.0f} s waited; one slice without it"
            )
        self._baton_waited_ns += wait.waited_ns
        self.block.write(
            phase=Phase.TRAINING,
            baton_waited_ns=self._baton_waited_ns,
            problems=self._notes.total,
        )

    def _lease_is_back(self) -> None:
        self._lost = False
        self._notes.say("the lease is back")
        if self._baton:
            self._baton.pass_on()

    def _has_lease(self) -> bool:
        return self.block.lease_until_ns >= monotonic_ns()


def _waits(block: Block, notes: Notes) -> OwnerWaits | None:
    """An owner's way of telling its guests when it waits."""
    if block.identity.role != Role.OWNER:
        return None
    from slipstream.torch_hooks.owner_waits import OwnerWaits  # noqa: PLC0415 (guests need none)

    return OwnerWaits(block.run_dir, block.identity.job_id, notes)


def _baton(block: Block, notes: Notes) -> Baton | None:
    """A guest's baton; of the ranks of one job only the first takes it.

    The others wait for the first in their next collective. If each took a baton of its own, two
    jobs could hold one each and wait for the other's for ever.
    """
    identity = block.identity
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    if identity.role != Role.GUEST or not identity.gpu_uuids or rank != "0":
        return None
    slice_ms = os.environ.get(SLICE_VARIABLE, "")
    if slice_ms and not slice_ms.isdigit():
        notes.problem(
            "bad setting", f"{SLICE_VARIABLE}={slice_ms!r} is no number; {DEFAULT_SLICE_MS} taken"
        )
        slice_ms = ""
    return Baton(block.run_dir, identity.gpu_uuids, slice_ms=int(slice_ms or DEFAULT_SLICE_MS))
