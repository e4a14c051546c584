# SPDX-License-Identifier: Apache-2.0
"""The queue against a model of it, in invented time: no process, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from occupancy_rig import history
from slipstream.torch_hooks.occupancy_queue import Queue
from slipstream.wire import gpu_state

pytestmark = pytest.mark.property

SLOTS = 3
one_slot = st.sampled_from([{slot} for slot in range(SLOTS)])
launches = st.tuples(st.just("launch"), one_slot, st.integers(0, 50))
passing = st.tuples(st.just("pass"), st.just(set[int]()), st.integers(1, 120))
deaths = st.tuples(st.just("die"), st.sets(st.integers(0, SLOTS - 1), min_size=1), st.just(0))
stories = st.lists(st.one_of(launches, launches, passing, deaths), max_size=60)


@dataclass(frozen=True)
class Kernel:
    """What the model knows of a kernel."""

    slot: int
    start: int
    duration: int

    @property
    def end(self) -> int:
        """When the GPU is free again."""
        return self.start + self.duration


@dataclass
class Model:
    """The rules of the queue, said as plainly as can be."""

    now: int = 1000
    kernels: list[Kernel] = field(default_factory=list)

    def launch(self, slot: int, duration: int) -> None:
        """Behind all others, or at once."""
        free_at = self.kernels[-1].end if self.kernels else 0
        self.kernels.append(Kernel(slot, max(self.now, free_at), duration))

    def die(self, slots: set[int]) -> None:
        """What has not started goes; the others close up, from now on."""
        waiting = [one for one in self.kernels if one.start > self.now and one.slot not in slots]
        self.kernels = [one for one in self.kernels if one.start <= self.now]
        free_at = max([self.now, *(one.end for one in self.kernels[-1:])])
        for one in waiting:
            self.kernels.append(replace(one, start=free_at))
            free_at += one.duration


@given(stories)
@settings(max_examples=150)
def test_the_queue_follows_its_rules(story: list[tuple[str, set[int], int]]) -> None:
    """Whatever happens: the same kernels at the same times, the same totals, the same to come."""
    gpu = gpu_state.Gpu()
    queue = Queue(gpu, gpu_state.COMPUTE)
    model = Model()
    for what, slots, amount in story:
        if what == "launch":
            (slot,) = slots
            queue.append(slot, amount, 0, model.now)
            model.launch(slot, amount)
        elif what == "pass":
            model.now += amount
        else:
            owners = [(slot, gpu.processes[slot].generation) for slot in slots]
            queue.drop_unstarted(owners, model.now)
            for slot in slots:
                gpu.processes[slot].generation += 1  # somebody else sits there now
            model.die(slots)
        _compare(gpu, queue, model)


@given(stories)
@settings(max_examples=50)
def test_a_repair_of_what_is_in_order_changes_nothing(
    story: list[tuple[str, set[int], int]],
) -> None:
    """So it may be done at any time, by anybody, any number of times."""
    gpu = gpu_state.Gpu()
    queue = Queue(gpu, gpu_state.COMPUTE)
    model = Model()
    for what, slots, amount in story:
        if what == "launch":
            (slot,) = slots
            queue.append(slot, amount, 0, model.now)
            model.launch(slot, amount)
        elif what == "pass":
            model.now += amount
        queue.finish_launch()
        queue.drop_unstarted((), model.now)
        _compare(gpu, queue, model)


def _compare(gpu: gpu_state.Gpu, queue: Queue, model: Model) -> None:
    ran = history(gpu, gpu_state.COMPUTE)
    assert [(one.slot, one.start_ns, one.end_ns) for one in ran] == [
        (one.slot, one.start, one.end) for one in model.kernels
    ]
    to_come = sum(max(0, one.end - max(one.start, model.now)) for one in model.kernels)
    assert queue.unfinished_ns(model.now) == to_come
    for slot in range(SLOTS):
        launched = sum(one.duration for one in model.kernels if one.slot == slot)
        assert gpu.processes[slot].launched_ns[gpu_state.COMPUTE] == launched
