# SPDX-License-Identifier: Apache-2.0
"""What a training does at a boundary, with and without a lease."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hooks_rig import FOREVER_NS, phase_becomes
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks.baton import Baton
from slipstream.wire import batons
from slipstream.wire.control_block import Capability, Directive, Phase, Request, Role

if TYPE_CHECKING:
    from hooks_rig import Make

pytestmark = pytest.mark.unit

ABLE = Capability.BOUNDARIES | Capability.PAUSE | Capability.PARKABLE | Capability.GATEABLE


def test_boundaries_are_counted_and_timed(make: Make) -> None:
    """The coordinator reads how far the training is and how long a mini-batch takes."""
    session, seen = make(Role.OWNER)
    ends_ns = [time.monotonic_ns()]
    for _ in range(5):
        time.sleep(0.01)
        session.boundary()
        ends_ns.append(time.monotonic_ns())
    seen.refresh()
    assert seen.progress.phase == Phase.TRAINING
    assert seen.progress.minibatches == 5
    assert seen.progress.pid == os.getpid()
    longest_ns = max(after - before for before, after in itertools.pairwise(ends_ns))
    assert 10_000_000 <= seen.progress.minibatch_ns <= 2 * longest_ns
    assert ends_ns[-2] <= seen.progress.last_boundary_ns <= ends_ns[-1]


def test_before_the_first_boundary_a_training_loads(make: Make) -> None:
    """An owner says what it can do; a guest can pass the baton, too."""
    for role, able in (
        (Role.OWNER, ABLE),
        (Role.GUEST, ABLE | Capability.BATON),
    ):
        _, seen = make(role, task=int(role))
        seen.refresh()
        assert (seen.progress.phase, seen.progress.capabilities) == (Phase.LOADING, able)


def test_a_directive_is_read_at_the_next_boundary(make: Make) -> None:
    """And its epoch is given back as a receipt."""
    session, seen = make(Role.GUEST)
    seen.direct(Directive(epoch=9, share_pct=30, armed_for_minibatch=12))
    session.boundary()
    seen.refresh()
    assert session.directive == Directive(epoch=9, share_pct=30, armed_for_minibatch=12)
    assert seen.progress.directive_epoch == 9


def test_a_request_is_carried_out_at_the_boundary_it_is_armed_for(make: Make) -> None:
    """Once, by whoever serves it; one that was taken back before is not."""
    session, seen = make(Role.OWNER)
    served: list[int] = []
    session.requests[Request.CHECKPOINT] = lambda: served.append(session.minibatches)
    seen.direct(Directive(epoch=1, request=Request.CHECKPOINT, armed_for_minibatch=4))
    for _ in range(8):
        session.boundary()
    assert served == [4]
    seen.direct(Directive(epoch=2, request=Request.CHECKPOINT, armed_for_minibatch=3))
    for _ in range(8):
        session.boundary()
    assert served == [4, 9]
    seen.direct(Directive(epoch=3, request=Request.CHECKPOINT, armed_for_minibatch=20))
    session.boundary()
    seen.direct(Directive(epoch=4))
    for _ in range(8):
        session.boundary()
    assert served == [4, 9]


def test_a_request_that_nobody_serves_is_noted(make: Make) -> None:
    """One of a later version, too."""
    session, seen = make(Role.OWNER)
    for epoch, request in ((1, Request.REBIND), (2, 99)):
        seen.direct(Directive(epoch=epoch, request=request))
        session.boundary()
        seen.refresh()
        assert seen.progress.problems == epoch


def test_what_a_process_can_do_may_change(make: Make) -> None:
    """It is restorable only once there is memory for its checkpoint."""
    session, seen = make(Role.OWNER)
    session.can(Capability.RESTORABLE, yes=True)
    seen.refresh()
    assert seen.progress.capabilities == ABLE | Capability.RESTORABLE
    session.can(Capability.RESTORABLE, yes=False)
    seen.refresh()
    assert seen.progress.capabilities == ABLE


def test_saving_is_a_phase_and_no_part_of_the_mini_batch_time(make: Make) -> None:
    """A training that stood still for its checkpoint is not slow."""
    session, seen = make(Role.OWNER)
    session.boundary()
    with session.during(Phase.SAVING):
        assert phase_becomes(seen, Phase.SAVING)
        time.sleep(0.3)
        session.saved(300_000_000, by_trainer=True)  # by torch.save, and left out only once
    session.boundary()
    assert phase_becomes(seen, Phase.TRAINING)
    assert seen.progress.minibatch_ns < 200_000_000


def test_an_owner_without_a_lease_runs_free(make: Make) -> None:
    """It counts the loss and waits for nobody, even if a guest holds the baton."""
    session, seen = make(Role.OWNER, lease_until_ns=1)
    holder = Baton(str(seen.path.parents[2]), ["GPU-a"])
    assert holder.take(lambda: False).held
    began_s = time.monotonic()
    for _ in range(100):
        session.boundary()
    seen.refresh()
    assert time.monotonic() - began_s < 10
    assert (seen.progress.leases_lost, seen.progress.baton_waited_ns) == (1, 0)
    holder.pass_on()


def test_a_guest_without_a_lease_waits_for_the_baton(make: Make) -> None:
    """It says so while it waits, and goes on when the other guest has passed it on."""
    session, seen = make(Role.GUEST, lease_until_ns=1)
    holder = Baton(str(seen.path.parents[2]), ["GPU-a"])
    assert holder.take(lambda: False).held
    training = threading.Thread(target=session.boundary)
    training.start()
    assert phase_becomes(seen, Phase.WAITING_FOR_BATON)
    holder.pass_on()
    training.join(30)
    assert not training.is_alive()
    seen.refresh()
    assert seen.progress.phase == Phase.TRAINING
    assert seen.progress.baton_waited_ns > 0


def test_a_guest_stops_waiting_when_the_lease_is_back(make: Make) -> None:
    """The coordinator is there again: its order counts, not the baton's."""
    session, seen = make(Role.GUEST, lease_until_ns=1)
    holder = Baton(str(seen.path.parents[2]), ["GPU-a"])
    assert holder.take(lambda: False).held
    training = threading.Thread(target=session.boundary)
    training.start()
    assert phase_becomes(seen, Phase.WAITING_FOR_BATON)
    seen.renew_lease(FOREVER_NS)
    training.join(30)
    assert not training.is_alive()
    holder.pass_on()


def test_a_guest_passes_the_baton_on_when_the_lease_is_back(make: Make) -> None:
    """At its next boundary nobody needs it any more."""
    session, seen = make(Role.GUEST, lease_until_ns=1)
    session.boundary()
    other = Baton(str(seen.path.parents[2]), ["GPU-a"], patience_s=0.05)
    assert not other.take(lambda: False).held
    seen.renew_lease(FOREVER_NS)
    session.boundary()
    assert other.take(lambda: False).held
    other.pass_on()


def test_waiting_is_not_part_of_the_mini_batch_time(make: Make) -> None:
    """A guest that waited half a second is not a slow guest."""
    session, seen = make(Role.GUEST, lease_until_ns=1)
    holder = Baton(str(seen.path.parents[2]), ["GPU-a"])
    assert holder.take(lambda: False).held

    def pass_on() -> None:
        assert phase_becomes(seen, Phase.WAITING_FOR_BATON)
        time.sleep(0.5)
        holder.pass_on()

    passing = threading.Thread(target=pass_on)
    passing.start()
    for _ in range(3):
        session.boundary()
    passing.join()
    seen.refresh()
    assert seen.progress.baton_waited_ns >= 500_000_000
    assert seen.progress.minibatch_ns < seen.progress.baton_waited_ns / 2


def test_a_rank_that_is_not_the_first_takes_no_baton(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two jobs could hold one each and wait for the other's for ever."""
    monkeypatch.setenv("RANK", "1")
    session, seen = make(Role.GUEST, lease_until_ns=1)
    holder = Baton(str(seen.path.parents[2]), ["GPU-a"])
    assert holder.take(lambda: False).held
    session.boundary()
    seen.refresh()
    assert seen.progress.baton_waited_ns == 0
    holder.pass_on()


def test_without_baton_files_a_guest_runs_on(make: Make) -> None:
    """Somebody removed them: noted, and training goes on."""
    session, seen = make(Role.GUEST, lease_until_ns=1)
    for path in batons.paths(str(seen.path.parents[2]), "GPU-a"):
        Path(path).unlink()
    for _ in range(3):
        session.boundary()
    seen.refresh()
    assert (seen.progress.minibatches, seen.progress.problems) == (3, 2)


def test_a_bad_slice_is_noted_and_the_default_taken(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typing error in the environment harms nothing."""
    monkeypatch.setenv("SLIPSTREAM_BATON_SLICE_MS", "two")
    session, seen = make(Role.GUEST)
    session.boundary()
    seen.refresh()
    assert seen.progress.problems == 1


def test_a_training_that_ends_says_so(make: Make) -> None:
    """And the page can be claimed by the next process."""
    session, seen = make(Role.OWNER)
    session.boundary()
    session.end()
    seen.refresh()
    assert seen.progress.phase == Phase.ENDED
    again = hook_blocks.claim(str(seen.path))
    assert again
    session.block = again  # for the fixture to end
