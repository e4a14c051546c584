# SPDX-License-Identifier: Apache-2.0
"""The native shortcut for quiet boundaries does what Python does, or nothing."""

from __future__ import annotations

import ctypes
import os
import threading
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

import pytest
import torch

from slipstream.coordinator import blocks
from slipstream.torch_hooks import attach, native_step
from slipstream.torch_hooks.native import __main__ as native_build
from slipstream.torch_hooks.pace import Pace
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE, Directive, Identity, Phase, Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

FOREVER_NS = 1 << 62


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    native_build.build()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[blocks.Block]:
    """The page of this process, attached."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.GUEST, "shared", "t", ("GPU-a",), os.getpid(), 1)
    )
    made = blocks.create(tmp_path / "blocks", identity, lease_until_ns=FOREVER_NS)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(made.path))
    attach.attach()
    yield made
    attach.detach()


def optimizer() -> torch.optim.Optimizer:
    """One with something to learn."""
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return torch.optim.SGD([parameter], lr=0.1)


def seen(page: blocks.Block) -> int:
    """How many mini-batches the page tells."""
    page.refresh()
    return page.progress.minibatches


def test_quiet_boundaries_are_told_at_once(
    page: blocks.Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each, without a way through Python."""
    problems = dict(attach.status().problems)  # those of other tests in this process
    trained = optimizer()
    trained.step()
    session = attach.current()
    assert session
    monkeypatch.setattr(type(session), "boundary", None)  # nobody may call it
    for number in range(2, 30):
        trained.step()
        assert seen(page) == number == attach.status().minibatches
    assert page.progress.minibatch_ns > 0
    assert attach.status().problems == problems


def test_a_directive_is_heard_at_the_next_boundary(page: blocks.Block) -> None:
    """Python hears it, and then it is quiet again."""
    trained = optimizer()
    for epoch in range(1, 5):
        trained.step()
        trained.step()
        page.direct(Directive(epoch))
        trained.step()
        page.refresh()
        assert page.progress.directive_epoch == epoch
    assert seen(page) == 12


def test_a_lost_lease_is_seen(page: blocks.Block) -> None:
    """And no boundary is counted twice or not at all for it."""
    trained = optimizer()
    for _ in range(3):
        trained.step()
    page.renew_lease(1)
    trained.step()
    page.refresh()
    assert page.progress.leases_lost == 1
    page.renew_lease(FOREVER_NS)
    for _ in range(3):
        trained.step()
    assert seen(page) == 7
    assert page.progress.phase == Phase.TRAINING


def test_others_are_none_of_its_business(page: blocks.Block) -> None:
    """Steps of another optimizer and of another thread are Python's to judge."""
    first, second = optimizer(), optimizer()
    for _ in range(5):
        first.step()
        second.step()
    beside = threading.Thread(target=first.step)
    beside.start()
    beside.join()
    first.step()
    assert seen(page) == 6


def test_a_detached_page_is_not_touched(page: blocks.Block) -> None:
    """And attached again, the shortcut is taken again."""
    trained = optimizer()
    for _ in range(3):
        trained.step()
    attach.detach()
    trained.step()
    assert seen(page) == 3
    attach.attach()
    for _ in range(2):
        trained.step()
    assert native_step.shortcuts().step_begins()  # this thread is followed
    assert not native_step.shortcuts().step_begins()  # it is inside a step now
    assert seen(page) == 2


def test_a_forked_child_does_not_count_for_its_parent(page: blocks.Block) -> None:
    """It has no page, and the parent's stays as it is."""
    trained = optimizer()
    for _ in range(3):
        trained.step()
    child = os.fork()
    if not child:
        attach._process.asks_at_ns = 1 << 63  # noqa: SLF001 (nobody is there to be asked)
        for _ in range(5):
            trained.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert seen(page) == 3


def test_the_running_time_is_the_same_in_both() -> None:
    """Whatever the durations are: short, long, and of pauses."""
    durations_ns = [(7919 * at * at) % 900_000 + (at % 13 == 0) * 10**8 for at in range(200)]
    pace, numbers = Pace(), native_step.PaceNumbers()
    steps = native_step.Steps(leader=id(pace))
    course = native_step.Course(quiet=1)
    up, down = (ctypes.c_uint64 * 32)(), (ctypes.c_uint64 * 8)()
    down[6] = FOREVER_NS  # the lease
    native_step.follow(
        get_ident(), steps, course, numbers, ctypes.addressof(up), ctypes.addressof(down)
    )
    shortcuts = native_step.shortcuts()
    try:
        for duration_ns in durations_ns:
            course.began_ns = before_ns = monotonic_ns() - duration_ns
            assert shortcuts.step_begins()
            assert shortcuts.step_ends(pace)
            assert up[5] == pace.add(course.began_ns - before_ns)
            assert numbers.duration_ns == pace.duration_ns
    finally:
        native_step.forget()
    assert course.minibatches == up[3] == len(durations_ns)
