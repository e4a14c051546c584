# SPDX-License-Identifier: Apache-2.0
"""What a training does at a boundary, with and without a lease."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks.baton import Baton
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.session import Session
from slipstream.wire import batons
from slipstream.wire.control_block import Capability, Directive, Identity, Phase, Request, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Make = Callable[..., tuple[Session, blocks.Block]]

pytestmark = pytest.mark.unit

ABLE = Capability.BOUNDARIES | Capability.PAUSE | Capability.PARKABLE | Capability.GATEABLE
FOREVER_NS = 1 << 62


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a session and the coordinator's view of its page."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    Path(batons.folder(str(tmp_path))).mkdir()
    for path in batons.paths(str(tmp_path), "GPU-a"):
        Path(path).touch()
    sessions: list[Session] = []

    def made(
        role: Role, *, task: int = 0, lease_until_ns: int = FOREVER_NS
    ) -> tuple[Session, blocks.Block]:
        identity = Identity(
            *(7, "0", task, os.getuid(), role, "shared", "token", ("GPU-a",), os.getpid(), 1)
        )
        seen = blocks.create(tmp_path / "blocks", identity, lease_until_ns=lease_until_ns)
        claimed = hook_blocks.claim(str(seen.path))
        assert claimed
        sessions.append(Session(claimed, Notes("")))
        return sessions[-1], seen

    yield made
    for session in sessions:
        session.end()


def test_boundaries_are_counted_and_timed(make: Make) -> None:
    """The coordinator reads how far the training is and how long a mini-batch takes."""
    session, seen = make(Role.OWNER)
    for _ in range(5):
        time.sleep(0.01)
        session.boundary()
    seen.refresh()
    assert seen.progress.phase == Phase.TRAINING
    assert seen.progress.minibatches == 5
    assert seen.progress.pid == os.getpid()
    assert 10_000_000 <= seen.progress.minibatch_ns < 50_000_000
    assert time.monotonic_ns() - seen.progress.last_boundary_ns < 1_000_000_000


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


PAUSE = Directive(epoch=1, request=Request.PAUSE)


def test_a_guest_that_is_stopped_stands_still_until_it_may_go_on(make: Make) -> None:
    """At its next boundary; what it waited is no part of its mini-batch time."""
    session, seen = make(Role.GUEST)
    session.boundary()
    seen.direct(PAUSE)

    def train() -> None:
        for _ in range(3):
            session.boundary()

    training = threading.Thread(target=train)
    training.start()
    assert _phase_becomes(seen, Phase.PAUSED)
    time.sleep(0.3)
    seen.refresh()
    assert (seen.progress.minibatches, seen.progress.directive_epoch) == (2, 1)
    seen.direct(Directive(epoch=2))
    training.join(5)
    seen.refresh()
    assert (seen.progress.phase, seen.progress.minibatches) == (Phase.TRAINING, 4)
    assert seen.progress.minibatch_ns < 200_000_000


def test_a_guest_that_may_not_start_stands_still_before_its_first_mini_batch(make: Make) -> None:
    """Where nothing is on the GPU yet."""
    session, seen = make(Role.GUEST)
    seen.direct(PAUSE)
    beginning = threading.Thread(target=session.begin)
    beginning.start()
    assert _phase_becomes(seen, Phase.PAUSED)
    seen.direct(Directive(epoch=2))
    beginning.join(5)
    assert not beginning.is_alive()
    seen.refresh()
    assert (seen.progress.phase, seen.progress.minibatches) == (Phase.LOADING, 0)


def test_a_guest_stands_still_after_the_mini_batch_it_is_asked_for(make: Make) -> None:
    """So that the ranks of one job stop together."""
    session, seen = make(Role.GUEST)
    seen.direct(Directive(epoch=1, request=Request.PAUSE, armed_for_minibatch=3))
    session.begin()
    session.boundary()
    session.boundary()
    training = threading.Thread(target=session.boundary)
    training.start()
    assert _phase_becomes(seen, Phase.PAUSED)
    seen.refresh()
    assert seen.progress.minibatches == 3
    seen.direct(Directive(epoch=2))
    training.join(5)
    assert not training.is_alive()


def test_a_guest_that_stands_still_goes_on_when_it_is_asked_for_later(make: Make) -> None:
    """Another rank was faster than the asking: all stop together, some mini-batches later."""
    session, seen = make(Role.GUEST)
    session.boundary()
    seen.direct(PAUSE)

    def train() -> None:
        for _ in range(6):
            session.boundary()

    training = threading.Thread(target=train)
    training.start()
    assert _phase_becomes(seen, Phase.PAUSED)
    assert seen.progress.minibatches == 2
    seen.direct(Directive(epoch=2, request=Request.PAUSE, armed_for_minibatch=5))
    deadline = time.monotonic() + 5
    while seen.progress.minibatches < 5 and time.monotonic() < deadline:
        seen.refresh()
    assert _phase_becomes(seen, Phase.PAUSED)
    assert (seen.progress.minibatches, seen.progress.directive_epoch) == (5, 2)
    seen.direct(Directive(epoch=3))
    training.join(5)
    seen.refresh()
    assert seen.progress.minibatches == 7
    assert seen.progress.paused_ns > 0


def test_a_profile_shows_what_a_process_waited_for(make: Make) -> None:
    """To stand still and to wait for the baton have labels of their own."""
    session, seen = make(Role.GUEST)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        session.boundary()
        seen.direct(PAUSE)
        threading.Timer(0.1, seen.direct, [Directive(epoch=2)]).start()
        session.boundary()
        seen.renew_lease(1)
        session.boundary()
    labels = {one.key: one.count for one in profile.key_averages() if "slipstream" in one.key}
    assert labels == {"slipstream: pause": 1, "slipstream: baton": 1}


def test_a_guest_that_stands_still_passes_the_baton_when_the_lease_is_lost(make: Make) -> None:
    """Nobody could tell it to go on; when the coordinator is back it stands again."""
    session, seen = make(Role.GUEST)
    session.boundary()
    seen.direct(PAUSE)
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            session.boundary()
            time.sleep(0.001)

    training = threading.Thread(target=train)
    training.start()
    try:
        assert _phase_becomes(seen, Phase.PAUSED)
        seen.renew_lease(1)
        assert _phase_becomes(seen, Phase.TRAINING)
        assert seen.progress.leases_lost == 1
        assert seen.progress.baton_waited_ns > 0
        seen.renew_lease(FOREVER_NS)
        assert _phase_becomes(seen, Phase.PAUSED)
    finally:
        stop.set()
        seen.direct(Directive(epoch=2))
        training.join(5)


def test_a_guest_without_a_lease_begins(make: Make) -> None:
    """What the last coordinator asked for does not hold without one."""
    session, seen = make(Role.GUEST, lease_until_ns=1)
    seen.direct(PAUSE)
    session.begin()
    seen.refresh()
    assert seen.progress.phase == Phase.LOADING


def test_a_request_is_carried_out_at_the_boundary_it_is_armed_for(make: Make) -> None:
    """Once, by whoever serves it."""
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


def test_a_request_that_was_taken_back_is_not_carried_out(make: Make) -> None:
    """The next directive came before its boundary."""
    session, seen = make(Role.OWNER)
    session.requests[Request.CHECKPOINT] = lambda: pytest.fail("it was taken back")
    seen.direct(Directive(epoch=1, request=Request.CHECKPOINT, armed_for_minibatch=4))
    session.boundary()
    seen.direct(Directive(epoch=2))
    for _ in range(8):
        session.boundary()


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
        assert _phase_becomes(seen, Phase.SAVING)
        time.sleep(0.3)
    session.boundary()
    assert _phase_becomes(seen, Phase.TRAINING)
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
    assert _phase_becomes(seen, Phase.WAITING_FOR_BATON)
    holder.pass_on()
    training.join(5)
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
    assert _phase_becomes(seen, Phase.WAITING_FOR_BATON)
    seen.renew_lease(FOREVER_NS)
    training.join(5)
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
    threading.Timer(0.5, holder.pass_on).start()
    for _ in range(3):
        session.boundary()
    seen.refresh()
    assert seen.progress.minibatch_ns < 50_000_000
    assert seen.progress.baton_waited_ns > 300_000_000


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


def _phase_becomes(seen: blocks.Block, phase: Phase) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        seen.refresh()
        if seen.progress.phase == phase:
            return True
        time.sleep(0.005)
    return False
