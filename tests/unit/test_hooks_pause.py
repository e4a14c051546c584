# SPDX-License-Identifier: Apache-2.0
"""A training that is asked to stand still at a boundary."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

from hooks_rig import FOREVER_NS, phase_becomes
from slipstream.wire.control_block import Directive, Phase, Request, Role

if TYPE_CHECKING:
    from hooks_rig import Make

pytestmark = pytest.mark.unit

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
    assert phase_becomes(seen, Phase.PAUSED)
    time.sleep(0.3)
    seen.refresh()
    assert (seen.progress.minibatches, seen.progress.directive_epoch) == (2, 1)
    seen.direct(Directive(epoch=2))
    training.join(30)
    seen.refresh()
    assert (seen.progress.phase, seen.progress.minibatches) == (Phase.TRAINING, 4)
    assert seen.progress.minibatch_ns < 200_000_000


def test_a_guest_that_may_not_start_stands_still_before_its_first_mini_batch(make: Make) -> None:
    """Where nothing is on the GPU yet."""
    session, seen = make(Role.GUEST)
    seen.direct(PAUSE)
    beginning = threading.Thread(target=session.begin)
    beginning.start()
    assert phase_becomes(seen, Phase.PAUSED)
    seen.direct(Directive(epoch=2))
    beginning.join(30)
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
    assert phase_becomes(seen, Phase.PAUSED)
    seen.refresh()
    assert seen.progress.minibatches == 3
    seen.direct(Directive(epoch=2))
    training.join(30)
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
    assert phase_becomes(seen, Phase.PAUSED)
    assert seen.progress.minibatches == 2
    seen.direct(Directive(epoch=2, request=Request.PAUSE, armed_for_minibatch=5))
    deadline = time.monotonic() + 30
    while seen.progress.minibatches < 5 and time.monotonic() < deadline:
        seen.refresh()
    assert phase_becomes(seen, Phase.PAUSED)
    assert (seen.progress.minibatches, seen.progress.directive_epoch) == (5, 2)
    seen.direct(Directive(epoch=3))
    training.join(30)
    seen.refresh()
    assert seen.progress.minibatches == 7
    assert seen.progress.paused_ns > 0


def test_a_profile_shows_what_a_process_waited_for(make: Make) -> None:
    """To stand still and to wait for the baton have labels of their own."""
    session, seen = make(Role.GUEST)

    def let_go() -> None:
        assert phase_becomes(seen, Phase.PAUSED)
        seen.direct(Directive(epoch=2))

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        session.boundary()
        seen.direct(PAUSE)
        helping = threading.Thread(target=let_go)
        helping.start()
        session.boundary()
        helping.join()
        seen.renew_lease(1)
        session.boundary()
    labels = {one.key: one.count for one in profile.key_averages() if "slipstream" in one.key}
    assert labels == {"slipstream: pause": 1, "slipstream: baton": 1}


def test_a_profile_shows_what_is_saved_and_restored(make: Make) -> None:
    """And what goes on at a boundary for the sake of a cap or a share."""
    session, seen = make(Role.GUEST)
    session.boundary()
    seen.direct(Directive(epoch=1, cap_bytes=1 << 40, share_pct=99))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for phase in (Phase.SAVING, Phase.RESTORING):
            with session.during(phase):
                pass
        session.boundary()
    session.let_go()
    labels = {one.key for one in profile.key_averages() if "slipstream" in one.key}
    assert labels == {f"slipstream: {one}" for one in ("saving", "restoring", "cap", "share")}


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
        assert phase_becomes(seen, Phase.PAUSED)
        seen.renew_lease(1)
        assert phase_becomes(seen, Phase.TRAINING)
        assert seen.progress.leases_lost == 1
        assert seen.progress.baton_waited_ns > 0
        seen.renew_lease(FOREVER_NS)
        assert phase_becomes(seen, Phase.PAUSED)
    finally:
        stop.set()
        seen.direct(Directive(epoch=2))
        training.join(30)


def test_a_guest_without_a_lease_begins(make: Make) -> None:
    """What the last coordinator asked for does not hold without one."""
    session, seen = make(Role.GUEST, lease_until_ns=1)
    seen.direct(PAUSE)
    session.begin()
    seen.refresh()
    assert seen.progress.phase == Phase.LOADING
