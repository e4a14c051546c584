# SPDX-License-Identifier: Apache-2.0
"""What a training process does at a boundary: say how far it is, read what is asked, keep order.

While the lease holds it may be asked to stand still or to park, and does so until it is asked no
more; what is to be done once is carried out by whoever serves it (`requests`). When the lease is
lost, nobody could say when to end a wait: an owner runs free and a guest passes the baton.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING

from slipstream.torch_hooks.baton import DEFAULT_SLICE_MS, SLICE_VARIABLE, Baton
from slipstream.torch_hooks.labels import label
from slipstream.torch_hooks.native_step import Course
from slipstream.torch_hooks.pace import Pace
from slipstream.wire.control_block import Capability, Phase, Request, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.torch_hooks.block import Block
    from slipstream.torch_hooks.gate import Gate
    from slipstream.torch_hooks.hold import Hold
    from slipstream.torch_hooks.memory import Memory
    from slipstream.torch_hooks.notes import Notes
    from slipstream.torch_hooks.owner_waits import OwnerWaits
    from slipstream.wire.control_block import Directive

_ABLE = Capability.BOUNDARIES | Capability.PAUSE | Capability.PARKABLE | Capability.GATEABLE
_ALL_OF_IT = 100
_TAKES_TURNS = "shared"
_WAITS = frozenset({Request.NONE, Request.PAUSE, Request.PARK, Request.HOLD})
"""What lasts as long as it is asked for; all else is done once."""
_PARKS = (Request.PARK, Request.HOLD)
_LOOK_EVERY_S = 0.02  # where nobody could wake it
_LOOK_EVERY_WHEN_PARKED_S = 0.05  # coming back takes longer than that


class Session:
    """One process with its page, from attaching to detaching."""

    def __init__(
        self,
        block: Block,
        notes: Notes,
        requests: dict[int, Callable[[], None]] | None = None,
        waited_ns: int = 0,
    ) -> None:
        self.block = block
        self.course = Course(began_ns=monotonic_ns())
        self.directive: Directive | None = None
        self.requests = {} if requests is None else requests
        """Who carries out which request; one that nobody serves is noted."""
        self._notes = notes
        self.pace = Pace()
        self._baton = _baton(block, notes)
        self._leases_lost = 0
        self._lost = False
        self._armed = False
        self._baton_waited_ns = 0
        self._paused_ns = waited_ns  # before torch was imported
        self._saving_ns = 0
        self._owned_up = 0
        self._parked_ns = 0
        self._memory: Memory | None = None
        self._capped = False
        self._capabilities = _ABLE
        if self._baton:
            self._capabilities |= Capability.BATON
        self._gate: Gate | None = None
        self._hold: Hold | None = None
        self._stood_ns = 0
        self.waits = _waits(block, notes)
        self._slept_ns = 0
        self._is_new = True
        """It has seen no boundary yet; the process may have had some before it had a page."""
        block.write(
            phase=Phase.LOADING,
            capabilities=self._capabilities,
            paused_ns=self._paused_ns,
            **_ranks(),
        )

    @property
    def minibatches(self) -> int:
        """How many boundaries there were."""
        return self.course.minibatches

    def may_begin(self) -> bool:
        """Whether nobody asks this process to stand still before it has used a device."""
        self._read_news()
        return not self._asks(Request.PAUSE, Request.HOLD)

    def begin(self) -> None:
        """Before anything is on the GPU: a process that has to stand still does so here."""
        self._read_news()
        self._stand_still(Request.PAUSE, Request.HOLD)
        self.block.write(gated_ns=self._paused_ns)
        self.course.began_ns = monotonic_ns()

    def boundary(self) -> None:
        """Between two mini-batches. Almost always quick, and then `native_step` does the same."""
        now_ns = monotonic_ns()
        course = self.course
        course.minibatches += 1
        if self._gate is not None:
            self._leave_out_sleep(self._gate, now_ns)
        if self._hold is not None:
            self._leave_out_hold(self._hold, now_ns)
        pace_ns = self.pace.add(now_ns - course.began_ns)
        if self.block.boundary(course.minibatches, now_ns, pace_ns) and course.quiet:
            course.began_ns = now_ns
        else:
            self._look_up(now_ns)
            course.began_ns = monotonic_ns()  # waiting is not training

    def saved(self, spent_ns: int, *, by_trainer: bool) -> None:
        """The program has saved something; only the thread that trains may say so at once."""
        self._saving_ns += spent_ns
        if by_trainer:
            self.course.began_ns += spent_ns  # saving is not training
            self.block.write(saving_ns=self._saving_ns)

    def own_up(self) -> None:
        """Say how much went wrong, if that is new; for the thread that trains."""
        if self._owned_up != self._notes.total:
            self._owned_up = self._notes.total
            self.block.write(problems=self._owned_up)

    def can(self, capability: Capability, *, yes: bool) -> None:
        """Say what this process can be asked for, or no longer."""
        self._capabilities &= ~capability
        if yes:
            self._capabilities |= capability
        self.block.write(capabilities=self._capabilities)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Something that is not training, and not part of the mini-batch time."""
        minibatch_began_ns, began_ns = self.course.began_ns, monotonic_ns()
        self.block.write(phase=phase)
        try:
            with label(phase.name.lower()):
                yield
        finally:
            after = Phase.TRAINING if self.minibatches else Phase.LOADING
            self.block.write(phase=after, problems=self._notes.total)
            # Whatever `saved` has left out meanwhile is part of this.
            self.course.began_ns = minibatch_began_ns + monotonic_ns() - began_ns

    def end(self) -> None:
        """The last thing this process says; first of all, since the rest may be what went wrong."""
        self.block.write(phase=Phase.ENDED, saving_ns=self._saving_ns, problems=self._notes.total)
        self.remove_gate()
        self._let_go_of_hold()
        if self.waits:
            self.waits.leave()
        if self._baton:
            self._baton.pass_on()
        self.block.close()

    def heed_holds(self, before_first_use: Callable[[], None]) -> None:
        """From now on this process can be stopped without a boundary, if it takes turns."""
        if self._hold is not None or self.block.identity.class_name != _TAKES_TURNS:
            return
        from slipstream.torch_hooks import hold  # noqa: PLC0415 (for jobs that take turns alone)

        if hold.possible():
            self._hold = hold.Hold(self.block, self._notes, before_first_use)
            self._hold.start()
            self.can(Capability.HOLDABLE, yes=True)

    def before_fork(self) -> None:
        """Python warns of a fork beside other threads, and it is right: have none."""
        if self._hold is not None:
            self._hold.pause()

    def after_fork(self) -> None:
        """In the parent."""
        if self._hold is not None:
            self._hold.start()

    def _let_go_of_hold(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.stop()

    def let_go(self) -> None:
        """The process goes on without us: nothing of its memory is elsewhere."""
        if self._memory:
            self._memory.close()

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
        if self._hold is None:
            self._look(now_ns)
        else:
            with self._hold.let_through():
                self._look(now_ns)

    def _look(self, now_ns: int) -> None:
        is_new, self._is_new = self._is_new, False
        if is_new:
            first = {"first_boundary_ns": now_ns} if self.minibatches == 1 else {}
            self.block.write(phase=Phase.TRAINING, **first, **_ranks())
        self._read_news()
        if is_new and self.directive is not None:
            self._heed_share(self.directive.share_pct)
        self._carry_out()
        if self.block.lease_until_ns < now_ns:
            self._without_lease()
        elif self._lost:
            self._lease_is_back()
        self._stand_still()
        while self._asks(*_PARKS):
            self._park()
            self._stand_still()  # it may have come back to wait for its turn here
        self._keep_to_cap()
        if self._gate is not None and not self._lost:
            with label("share"):
                self._gate.at_boundary(self.directive.epoch if self.directive else 0)
            self._slept_ns = self._gate.slept_ns
            self.own_up()
        busy = self._is_asked_to_wait or self._armed or self._capped or self._gate is not None
        self.course.told = self.block.told
        self.course.quiet = not (self._lost or busy)

    def _read_news(self) -> None:
        directive = self.block.news()
        if directive is not None:
            self.directive = directive
            self._armed = directive.request not in _WAITS
            self._heed_share(directive.share_pct)
            self.block.write(directive_epoch=directive.epoch, problems=self._notes.total)

    @property
    def _is_asked_to_wait(self) -> bool:
        """Now, or after a mini-batch that is yet to come."""
        directive = self.directive
        if directive is None:
            return False
        asked = directive.request in _WAITS and directive.request != Request.NONE
        return asked or directive.armed_for_minibatch > self.minibatches

    def _asks(self, *requests: Request) -> bool:
        """Whether it is to be done at this boundary, by somebody who will say when to end it."""
        directive = self.directive
        if directive is None or directive.request not in requests:
            return False
        return self.minibatches >= directive.armed_for_minibatch and self._has_lease()

    def _stand_still(self, *requests: Request) -> None:
        """Wait here if it is asked for; without a coordinator nobody could say when to go on."""
        requests = requests or (Request.PAUSE,)
        if not self._asks(*requests):
            return
        self._notes.say("stands still: the node's coordinator asks for it")
        self.block.write(phase=Phase.PAUSED)
        began_ns = monotonic_ns()
        with label("pause"):
            while self._asks(*requests):
                self.block.wait_for_news(_LOOK_EVERY_S)
                self._read_news()
        self._paused_ns += monotonic_ns() - began_ns
        self.block.write(
            phase=Phase.TRAINING if self.minibatches else Phase.LOADING, paused_ns=self._paused_ns
        )
        self._notes.say("goes on")
        if self.minibatches and not self._has_lease():
            self._without_lease()

    def _park(self) -> None:
        began_ns = monotonic_ns()
        self._on_the_way()
        try:
            with label("park"):
                if "torch" in sys.modules:
                    self._memory_of_torch().park(self._stay_parked, self._on_the_way)
                else:
                    self._stay_parked(emptied=False)
        finally:  # a Ctrl-C is the program's, and it may go on
            self._parked_ns += monotonic_ns() - began_ns
            self.block.write(
                phase=Phase.TRAINING, parked_ns=self._parked_ns, problems=self._notes.total
            )

    def _stay_parked(self, emptied: bool) -> None:  # noqa: FBT001 (a callback's one argument)
        """Wait until this process may go on; without a lease a guest needs the baton for that."""
        if not emptied:
            self._capabilities &= ~Capability.PARKABLE  # it was asked for and could not be done
        while True:
            self.block.write(
                phase=Phase.PARKED if emptied else Phase.PAUSED,
                capabilities=self._capabilities,
                problems=self._notes.total,
            )
            while self._asks(*_PARKS):
                self.block.wait_for_news(_LOOK_EVERY_WHEN_PARKED_S)
                self._read_news()
            if not self._has_lease():
                self._without_lease()
            if self._lost and self._has_lease():
                self._lease_is_back()
            if not self._asks(*_PARKS):
                return

    def _on_the_way(self) -> None:
        """It stands still, and its memory goes off the GPU or comes back."""
        self.block.write(phase=Phase.PAUSED)

    def _keep_to_cap(self) -> None:
        """Also without a lease: the neighbours' memory is where it was."""
        directive = self.directive
        if directive is None or "torch" not in sys.modules:
            return
        is_due = self.minibatches >= directive.armed_for_minibatch
        if is_due and (directive.cap_bytes or self._capped):
            memory = self._memory_of_torch()
            with label("cap"):
                self._capped = not memory.cap(directive.cap_bytes)
            self.block.write(away_bytes=memory.away_bytes)

    def _memory_of_torch(self) -> Memory:
        """Loaded when first needed: most trainings never are asked for their memory."""
        if self._memory is None:
            from slipstream.torch_hooks.memory import Memory  # noqa: PLC0415 (see above)

            self._memory = Memory(self._notes)
        return self._memory

    def _heed_share(self, share_pct: int) -> None:
        """A gate is there only while it is needed: it costs each operator a little.

        Before the first mini-batch nobody can tell which device is used, and so which gate.
        """
        if share_pct >= _ALL_OF_IT:
            self.remove_gate()
        elif self._gate is None and self.minibatches:
            from slipstream.torch_hooks import gate  # noqa: PLC0415 (paid for by those who need it)

            self._gate = gate.install(self.block, self._notes)

    def _leave_out_sleep(self, gate: Gate, now_ns: int) -> None:
        """Being held up is not training; threads may have been held up at the same time."""
        slept_ns = gate.slept_ns
        self.course.began_ns = min(now_ns, self.course.began_ns + slept_ns - self._slept_ns)
        self._slept_ns = slept_ns

    def _leave_out_hold(self, hold: Hold, now_ns: int) -> None:
        """Neither is standing before a device operation: it is paused time."""
        stood_ns = hold.stood_ns
        if stood_ns == self._stood_ns:
            return
        new_ns, self._stood_ns = stood_ns - self._stood_ns, stood_ns
        self.course.began_ns = min(now_ns, self.course.began_ns + new_ns)
        self._paused_ns += new_ns
        self.block.write(paused_ns=self._paused_ns)
        if self.minibatches == 1:
            self.block.write(gated_ns=self._paused_ns)

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
            with label("baton"):
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


def _ranks() -> dict[str, int]:
    """With how many others this process trains, and which of them it is."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"world_size": distributed.get_world_size(), "rank": distributed.get_rank()}
    except (AttributeError, RuntimeError, ValueError):
        pass  # half imported, or a group that is being destroyed
    return {"world_size": 1, "rank": 0}
