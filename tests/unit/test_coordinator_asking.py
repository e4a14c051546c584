# SPDX-License-Identifier: Apache-2.0
"""Asking all processes of a job at the same mini-batch, also if they are faster than the asking."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from slipstream.coordinator import asking, blocks
from slipstream.coordinator.gangs import Gangs, Together
from slipstream.coordinator.orders import Orders
from slipstream.coordinator.reflexes import Reflexes
from slipstream.coordinator.seats import Seat
from slipstream.core.classes import Mode
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire import control_block
from slipstream.wire.control_block import Directive, Down, Identity, Phase, Request, Role

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

PAUSE = Directive(epoch=1, request=Request.PAUSE)


class Rank:
    """A process's end of a page, and the coordinator's."""

    def __init__(self, folder: Path, task: int, minibatches: int) -> None:
        identity = Identity(
            *(7, "0", task, os.getuid(), Role.GUEST, "shared", "t", ("a",), os.getpid(), 1)
        )
        self.seen = blocks.create(folder, identity, lease_until_ns=1 << 62)
        claimed = hook_blocks.claim(str(self.seen.path))
        assert claimed
        self.block = claimed
        self.to(minibatches)

    def to(self, minibatches: int, phase: Phase = Phase.TRAINING) -> None:
        """Train that far."""
        self.block.write(minibatches=minibatches, phase=phase)

    def asked(self) -> Directive:
        """What stands in the page."""
        raw = self.seen.path.read_bytes()
        words = memoryview(raw).cast("Q").tolist()
        return control_block.read_directive(
            control_block.read_half(Down, lambda first, count: words[first : first + count])
        )


def ranks(folder: Path, *minibatches: int) -> tuple[list[Rank], list[blocks.Block]]:
    """Processes that are so far, and their pages."""
    made = [Rank(folder, task, done) for task, done in enumerate(minibatches)]
    return made, [one.seen for one in made]


@pytest.mark.parametrize(
    ("done", "armed_for"),
    [
        pytest.param((9, 10, 9, 10), 12, id="two after the foremost"),
        pytest.param((4,), 0, id="alone: at once"),
        pytest.param((0, 0), 0, id="not begun: before the first device is used"),
        pytest.param((0, 7), 0, id="only one has begun"),
        pytest.param((9, 4000), 0, id="they do not train together"),
    ],
)
def test_ranks_are_asked_ahead(done: tuple[int, ...], armed_for: int, tmp_path: Path) -> None:
    """All for the same mini-batch, and each page says so."""
    made, pages = ranks(tmp_path, *done)
    found = asking.ask(pages, PAUSE)
    assert found == Directive(1, request=Request.PAUSE, armed_for_minibatch=armed_for)
    assert {one.asked() for one in made} == {found} == {page.directive for page in pages}


def test_one_that_has_ended_does_not_count(tmp_path: Path) -> None:
    """Its number stays in its page."""
    made, pages = ranks(tmp_path, 9, 9, 99)
    made[2].to(99, Phase.ENDED)
    assert asking.ask(pages, PAUSE).armed_for_minibatch == 11


def test_to_go_on_is_asked_at_once(tmp_path: Path) -> None:
    """Nobody could come to a later mini-batch."""
    _, pages = ranks(tmp_path, 9, 9)
    assert asking.ask(pages, Directive(epoch=5)) == Directive(epoch=5)


def test_ranks_that_are_faster_are_asked_again_further_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first page was written, the ranks went past the mini-batch: armed anew for all."""
    made, pages = ranks(tmp_path, 9, 10)
    direct = blocks.Block.direct
    written: list[Directive] = []

    def slowly(page: blocks.Block, directive: Directive) -> None:
        direct(page, directive)
        written.append(directive)
        for one in made:
            one.to(10 + 3 * len(written))

    monkeypatch.setattr(blocks.Block, "direct", slowly)
    found = asking.ask(pages, PAUSE)
    assert [one.armed_for_minibatch for one in written] == [12, 12, 24, 24]
    assert found == Directive(2, request=Request.PAUSE, armed_for_minibatch=24)


def test_a_page_out_of_reach_does_not_keep_the_others_from_being_asked(tmp_path: Path) -> None:
    """And it is not asked for ever, which would put the others off for ever."""
    made, pages = ranks(tmp_path, 9, 9)
    os.close(pages[0].descriptor)
    pages[0].descriptor = os.open(pages[0].path, os.O_RDONLY)
    found = asking.ask(pages, PAUSE)
    assert made[1].asked() == found
    assert [page.directive for page in pages] == [found, found]
    pages[0].forget()


@pytest.mark.parametrize(
    ("told", "armed_for", "apart"),
    [
        pytest.param([(9, Phase.PAUSED), (10, Phase.TRAINING)], 9, True, id="one passed it"),
        pytest.param([(9, Phase.PAUSED), (10, Phase.PAUSED)], 0, True, id="both stand, apart"),
        pytest.param([(9, Phase.PAUSED), (8, Phase.TRAINING)], 9, False, id="it is on its way"),
        pytest.param([(9, Phase.PAUSED), (9, Phase.PAUSED)], 9, False, id="together"),
        pytest.param([(9, Phase.TRAINING), (10, Phase.TRAINING)], 0, False, id="nobody stands"),
        pytest.param([(9, Phase.PAUSED), (500, Phase.PAUSED)], 0, False, id="not together at all"),
        pytest.param([(9, Phase.PARKED), (10, Phase.ENDED)], 0, False, id="the other has ended"),
        pytest.param([], 0, False, id="nobody there"),
    ],
)
def test_ranks_that_stand_apart_are_seen(
    told: list[tuple[int, Phase]], armed_for: int, *, apart: bool, tmp_path: Path
) -> None:
    """Only what will not come together by itself."""
    made, pages = ranks(tmp_path, *(done for done, _ in told))
    for one, (done, phase) in zip(made, told, strict=True):
        one.to(done, phase)
        one.seen.refresh()
    assert asking.stand_apart(pages, Directive(1, armed_for_minibatch=armed_for)) is apart


def test_ranks_that_stand_still_together_are_asked_at_once(tmp_path: Path) -> None:
    """Parked, and to come back and wait: none of them goes on for that."""
    made, pages = ranks(tmp_path, 8, 8)
    for one in made:
        one.to(8, Phase.PARKED)
    asked = asking.ask(pages, Directive(epoch=3, request=Request.PAUSE))
    assert asked.armed_for_minibatch == 0


def test_who_was_asked_to_save_by_an_earlier_coordinator_is_asked_anew(tmp_path: Path) -> None:
    """It may have done that: a new question has a new epoch, and is asked once."""
    (rank,), pages = ranks(tmp_path, 8)
    pages[0].direct(Directive(epoch=4, request=Request.CHECKPOINT))
    orders = Orders(Reflexes(Mode.ENFORCE), Gangs("n1"), tmp_path / "parked.json")
    seat = Seat(7, os.getuid(), Role.GUEST, "shared", "t", ("a",))
    orders.saving.add(7)
    for _ in range(2):
        orders.settle({7: seat}, {7: pages}, {})
        assert (rank.asked().epoch, rank.asked().request) == (5, Request.CHECKPOINT)
    orders.saving.clear()
    orders.settle({7: seat}, {7: pages}, {})
    assert rank.asked().request == Request.NONE


def test_a_gang_is_asked_ahead_of_what_its_other_nodes_hear(tmp_path: Path) -> None:
    """Also a rank that is alone on its node; those that stand, at once; the others as named."""
    (rank,), pages = ranks(tmp_path, 8)
    asked = Directive(epoch=3, request=Request.PARK)
    assert asking.ask_gang(pages, asked, Together(notice_s=0.5)).armed_for_minibatch > 8
    assert asking.ask_gang(pages, asked, Together(after=40)).armed_for_minibatch == 40
    assert rank.asked().armed_for_minibatch == 40
    rank.to(40, Phase.PARKED)
    wait = replace(asked, request=Request.PAUSE)
    assert asking.ask_gang(pages, wait, Together(after=40)).armed_for_minibatch == 0
    free = replace(asked, request=Request.NONE)
    assert asking.ask_gang(pages, free, Together(notice_s=0.5)).armed_for_minibatch == 0


def test_a_page_that_nobody_claimed_does_not_send_a_gang_on(tmp_path: Path) -> None:
    """A batch script has one: who stands still is parked where it stands, as on its other nodes."""
    (rank, _), pages = ranks(tmp_path, 1, 0)
    rank.to(1, Phase.PAUSED)
    asked = Directive(epoch=3, request=Request.PARK)
    assert asking.ask_gang(pages, asked, Together(notice_s=0.5)).armed_for_minibatch == 0
