# SPDX-License-Identifier: Apache-2.0
"""Turns as a coordinator hears of them: pages that change between two looks, or do not."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from node_world import shared
from slipstream.coordinator.blocks import Block
from slipstream.coordinator.gpus import GpuSample
from slipstream.coordinator.measuring import JobMeter
from slipstream.coordinator.reflexes import Reflexes, report
from slipstream.core.classes import Mode
from slipstream.core.node.rules import NodeRules
from slipstream.wire.control_block import (
    Capability,
    Directive,
    Held,
    Identity,
    Phase,
    Progress,
    Request,
    Role,
)

pytestmark = pytest.mark.unit

GPUS: Final = (GpuSample(0.0, 0, "a", 0, 50, 900, 16_000),)
IDENTITY: Final = Identity(*(7, "batch", 0, 1000, Role.GUEST, "shared", "", ("a",), 100, 555))
RULES: Final = NodeRules(feedback_minibatches=100)
OLD, NEW, NEWEST = 7, 8, 9


class Node:
    """A node of one GPU, as its coordinator sees it every tenth of a second."""

    def __init__(self, *jobs: int) -> None:
        self.reflexes = Reflexes(Mode.ENFORCE, RULES)
        self.now_s = 1.0
        self.meters: dict[int, JobMeter] = {}
        self.reflexes.seated(self.now_s, GPUS, [shared(job) for job in jobs])

    def look(self, **pages: Block) -> None:
        """One look at all pages, named `job_7`."""
        self.now_s += 0.1
        seen = {int(name.removeprefix("job_")): [one] for name, one in pages.items()}
        self.reflexes.heard(self.now_s, seen, GPUS, self.meters)

    def runs(self) -> list[int]:
        """Who is not asked to wait."""
        jobs = self.reflexes.machine.jobs
        return [job for job in jobs if not self.reflexes.wanted(job).parked]


def page(phase: Phase, minibatches: int = 0, asked: Request = Request.NONE) -> Block:
    """A page whose process has heard all it was asked."""
    progress = Progress(phase=phase, minibatches=minibatches, directive_epoch=2)
    return Block(Path("page"), IDENTITY, -1, progress, Directive(epoch=2, request=asked))


def training(minibatches: int) -> Block:
    """It has done so many."""
    return page(Phase.TRAINING, minibatches)


def parked(minibatches: int) -> Block:
    """It was asked to leave, and has."""
    return page(Phase.PARKED, minibatches, Request.PARK)


IMPORTING: Final = page(Phase.IMPORTING)
LOADING: Final = page(Phase.LOADING)
HELD: Final = page(Phase.PAUSED, asked=Request.PAUSE)


def node_whose_new_job_leaves() -> Node:
    """An old job is parked for a new one, which has done its first mini-batches and is to park."""
    node = Node(OLD, NEW, NEWEST)
    node.look(job_7=training(200), job_8=LOADING, job_9=LOADING)
    node.look(job_7=training(210), job_8=HELD, job_9=LOADING)
    node.look(job_7=parked(211), job_8=HELD, job_9=LOADING)
    assert node.runs() == [NEW]
    node.look(job_7=parked(211), job_8=training(100), job_9=LOADING)
    assert node.runs() == []
    return node


def test_a_turn_that_ended_before_its_job_heard_of_it_holds_nobody_up() -> None:
    """In one look one job is gone, the next is called, and a new one is ready and comes first."""
    node = node_whose_new_job_leaves()
    for _ in range(2):
        node.look(job_7=parked(211), job_8=parked(101), job_9=HELD)
    assert node.runs() == [NEWEST]


def test_an_operator_who_parks_a_job_that_is_just_called_leaves_its_turn_to_others() -> None:
    """It never left, so its page says nothing new."""
    node = node_whose_new_job_leaves()
    node.look(job_7=parked(211), job_8=parked(101), job_9=LOADING)
    node.reflexes.ordered(node.now_s, [OLD])
    node.look(job_7=parked(211), job_8=parked(101), job_9=LOADING)
    assert node.runs() == [NEW]


def test_a_job_that_imports_makes_room_at_once() -> None:
    """It has the turn while nobody is ready, and says nothing new before its import has ended."""
    node = Node(OLD, NEW)
    node.look(job_7=IMPORTING, job_8=IMPORTING)
    node.look(job_7=IMPORTING, job_8=LOADING)
    assert node.runs() == [OLD]
    for _ in range(2):
        node.look(job_7=IMPORTING, job_8=HELD)
    assert node.runs() == [NEW]


def holdable(minibatches: int, held: Held = Held.NO, asked: Request = Request.NONE) -> Block:
    """A process that can be stopped without a boundary."""
    able = Capability.BOUNDARIES | Capability.HOLDABLE
    told = Progress(pid=42, phase=Phase.TRAINING, minibatches=minibatches, capabilities=able)
    return Block(
        *(Path("page"), IDENTITY, -1, replace(told, held=held)), Directive(epoch=2, request=asked)
    )


def node_with_a_job_at_rest() -> Node:
    """An old job has not used its GPU for ten seconds, and a new one has loaded."""
    node = Node(OLD, NEW)
    node.meters[OLD] = JobMeter(resident_mib=300, gpu_pids=frozenset({42}), quiet_since_s=1.0)
    node.now_s = 11.0
    node.look(job_7=holdable(200), job_8=LOADING)
    node.look(job_7=holdable(200), job_8=HELD)
    return node


def test_a_job_at_rest_is_asked_to_hold_and_the_new_one_runs_when_it_does() -> None:
    """Not before: until its page says so it may still begin an operation."""
    node = node_with_a_job_at_rest()
    assert node.reflexes.wanted(OLD).held
    assert node.reflexes.hurries
    assert node.runs() == []
    for _ in range(2):
        node.look(job_7=holdable(200, Held.YES, Request.HOLD), job_8=HELD)
    assert node.runs() == [NEW]
    assert node.reflexes.wanted(NEW).cap_bytes > 0
    assert not node.reflexes.hurries, "a job that is held is in nobody's way"


def test_a_job_that_waits_is_told_who_has_the_turn_and_since_when() -> None:
    """By the clock on the wall."""
    node = node_with_a_job_at_rest()
    for _ in range(2):
        node.look(job_7=holdable(200, Held.WAITED_FOR, Request.HOLD), job_8=HELD)
    told = node.reflexes.told(OLD)
    assert told["turn_holder"] == NEW
    assert told["turn_since_s"] == pytest.approx(time.time(), abs=5)
    assert told["node_reason"] == "held_idle"
    assert "turn_holder" not in node.reflexes.told(NEW)


def test_only_a_job_of_one_process_can_be_held() -> None:
    """Ranks may be in a collective; what is on the GPU without a page goes on."""
    page_of_it, meter = holdable(3), JobMeter(gpu_pids=frozenset({42}))
    assert report(1.0, OLD, [page_of_it], GPUS, meter).can_hold
    assert not report(1.0, OLD, [page_of_it, holdable(3)], GPUS, meter).can_hold
    assert not report(1.0, OLD, [training(3)], GPUS, meter).can_hold
    assert report(1.0, OLD, [LOADING, page_of_it], GPUS, meter).can_hold, "a launcher is no rank"
    meter.gpu_pids = frozenset({42, 43})
    assert not report(1.0, OLD, [page_of_it], GPUS, meter).can_hold
