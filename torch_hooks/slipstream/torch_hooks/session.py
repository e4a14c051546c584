# SPDX-License-Identifier: Apache-2.0
"""What a training process does at a boundary: say how far it is, read what is asked, keep order.

What is asked is carried out by whoever serves it (`requests`), at the boundary it is armed for.
When the lease is lost, an owner runs free and a guest passes the baton.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING

from slipstream.torch_hooks.baton import DEFAULT_SLICE_MS, SLICE_VARIABLE, Baton
from slipstream.torch_hooks.pace import Pace
from slipstream.wire.control_block import Capability, Phase, Request, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.torch_hooks.block import Block
    from slipstream.torch_hooks.notes import Notes
    from slipstream.wire.control_block import Directive


class Session:
    """One process with its page, from attaching to detaching."""

    def __init__(
        self,
        block: Block,
        notes: Notes,
        requests: dict[int, Callable[[], None]] | None = None,
    ) -> None:
        self.block = block
        self.minibatches = 0
        self.directive: Directive | None = None
        self.requests = {} if requests is None else requests
        """Who carries out which request; one that nobody serves is noted."""
        self._notes = notes
        self._pace = Pace()
        self._began_ns = monotonic_ns()
        self._baton = _baton(block, notes)
        self._leases_lost = 0
        self._lost = False
        self._quiet = False
        self._armed = False
        self._baton_waited_ns = 0
        self._capabilities = Capability.BOUNDARIES
        if self._baton:
            self._capabilities |= Capability.BATON
        block.write(phase=Phase.LOADING, capabilities=self._capabilities)

    def boundary(self) -> None:
        """Between two mini-batches. Almost always quick: each microsecond here is the user's."""
        now_ns = monotonic_ns()
        self.minibatches += 1
        pace_ns = self._pace.add(now_ns - self._began_ns)
        if self.block.boundary(self.minibatches, now_ns, pace_ns) and self._quiet:
            self._began_ns = now_ns
        else:
            self._look_up(now_ns)
            self._began_ns = monotonic_ns()  # waiting is not training

    def can(self, capability: Capability, *, yes: bool) -> None:
        """Say what this process can be asked for, or no longer."""
        self._capabilities &= ~capability
        if yes:
            self._capabilities |= capability
        self.block.write(capabilities=self._capabilities)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Something that is not training, and not part of the mini-batch time."""
        began_ns = monotonic_ns()
        self.block.write(phase=phase)
        try:
            yield
        finally:
            after = Phase.TRAINING if self.minibatches else Phase.LOADING
            self.block.write(phase=after, problems=self._notes.total)
            self._began_ns += monotonic_ns() - began_ns

    def end(self) -> None:
        """The last thing this process says."""
        if self._baton:
            self._baton.pass_on()
        self.block.write(phase=Phase.ENDED, problems=self._notes.total)
        self.block.close()

    def abandon(self) -> None:
        """In a forked child: the page and the batons are the parent's."""
        if self._baton:
            self._baton.pass_on()  # closes this process's copies; the parent goes on holding
        self.block.close()

    def _look_up(self, now_ns: int) -> None:
        """Something is new: the first mini-batch, a directive, a lease lost or back."""
        if self.minibatches == 1:
            self.block.write(phase=Phase.TRAINING)
        directive = self.block.news()
        if directive is not None:
            self.directive = directive
            self._armed = directive.request != Request.NONE
            self.block.write(directive_epoch=directive.epoch, problems=self._notes.total)
        self._carry_out()
        if self.block.lease_until_ns < now_ns:
            self._without_lease()
        elif self._lost:
            self._lease_is_back()
        self._quiet = not (self._lost or self._armed)

    def _carry_out(self) -> None:
        directive = self.directive
        if not self._armed or not directive or self.minibatches < directive.armed_for_minibatch:
            return
        self._armed = False
        serve = self.requests.get(directive.request)
        if serve is not None:
            serve()
        else:
            self._notes.problem(
                "not served", f"request {directive.request}: this training cannot do it"
            )
            self.block.write(problems=self._notes.total)

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
    run_dir = os.path.dirname(os.path.dirname(os.path.dirname(block.path)))  # noqa: PTH120 (no pathlib in a user's process)
    return Baton(run_dir, identity.gpu_uuids, slice_ms=int(slice_ms or DEFAULT_SLICE_MS))
