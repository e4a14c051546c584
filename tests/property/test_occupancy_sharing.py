# SPDX-License-Identifier: Apache-2.0
"""Real processes on one GPU: nothing overlaps, everything adds up, the dead leave nothing."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from occupancy_rig import MIB, assert_in_order, history, load_nvml, simulated_node, workers
from slipstream.torch_hooks import occupancy
from slipstream.wire import gpu_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from occupancy_rig import Worker

pytestmark = pytest.mark.property

kernels = st.tuples(st.just("kernel"), st.integers(0, 1500))
copies = st.tuples(st.just("copy"), st.integers(0, 400_000))  # bytes, at 1 GB/s
pauses = st.tuples(st.just("sleep"), st.integers(0, 1000))
synchronizing = st.tuples(st.just("synchronize"), st.just(0))
programs = st.lists(st.one_of(kernels, kernels, copies, pauses, synchronizing), max_size=25)
few = settings(max_examples=15)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two GPUs of 1 GiB, copies at 1 GB/s."""
    with simulated_node(gpu_count=2) as path:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield path


def test_work_of_several_processes_never_overlaps_and_adds_up(node: Path) -> None:
    """On each engine of one GPU; each kernel and copy runs once, for exactly its time."""
    launched_ns = [0, 0, 0]
    record = gpu_state.map_node(node).gpus[0]

    with workers(node, 0, 0, 0) as together:

        @few
        @example(([("kernel", 5)] * 400,) * 3)  # as fast as they can, at the same time
        @given(st.tuples(programs, programs, programs))
        def check(told: tuple[list[tuple[str, int]], ...]) -> None:
            answers = _run(together, told)
            for kind, unit_ns in (("kernel", 1000), ("copy", 1)):
                for program, answer in zip(told, answers, strict=True):
                    expected = [amount * unit_ns for name, amount in program if name == kind]
                    assert [end - start for start, end in _spans(answer, kind)] == expected
                _assert_apart(span for answer in answers for span in _spans(answer, kind))
            for index, answer in enumerate(answers):
                launched_ns[index] += sum(end - start for start, end in _spans(answer, "kernel"))
                assert answer["busy_ns"] == launched_ns[index]

        check()
        with occupancy.open_gpu() as observer:
            assert observer.usage().gpu_busy_ns == sum(launched_ns)
        assert_in_order(record)


def test_processes_on_two_gpus_do_not_delay_each_other(node: Path) -> None:
    """Each finishes a second of kernels, in pieces, as if it were alone."""
    program = [("kernel", 10_000)] * 30
    with workers(node, 0, 1) as apart:
        answers = _run(apart, (program, program))

    for answer in answers:
        spans = _spans(answer, "kernel")
        assert spans[-1][1] - spans[0][0] == 300_000_000


def test_nvml_reports_the_use_that_was_launched(node: Path) -> None:
    """By process, since a moment, and of the GPU in the last second: within two points."""
    load_nvml()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    with workers(node, 0, 0) as together:

        @settings(max_examples=3)
        @given(st.tuples(st.integers(1, 40), st.integers(1, 40)))
        def check(burst_ms: tuple[int, int]) -> None:
            since_us = time.time_ns() // 1000
            begin_ns = time.monotonic_ns()
            steps = [[("kernel", ms * 1000), ("sleep", 15_000)] * 6 for ms in burst_ms]
            spans = [_spans(answer, "kernel") for answer in _run(together, steps)]
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
            before_ns = time.monotonic_ns()
            rate = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
            after_ns = time.monotonic_ns()

            reported = {sample.pid: sample for sample in samples}
            for worker, own in zip(together, spans, strict=True):
                sample = reported[worker.process.pid]
                window_ns = (sample.timeStamp - since_us) * 1000
                used_pct = 100 * _within(own, begin_ns, begin_ns + window_ns) / window_ns
                assert sample.smUtil == pytest.approx(used_pct, abs=2)
            least, most = sorted(_last_second_pct(node, at_ns) for at_ns in (before_ns, after_ns))
            assert least - 2 <= rate <= most + 2

        check()
    pynvml.nvmlShutdown()


def test_a_kill_at_any_moment_frees_memory_and_queue(node: Path) -> None:
    """While both hammer the lock: the survivor goes on and the memory is in order."""
    record = gpu_state.map_node(node).gpus[0]
    with workers(node, 0) as (survivor,), occupancy.open_gpu() as observer:

        @few
        @given(st.integers(0, 20_000), st.sampled_from([1, 50, 5000]))
        def check(delay_us: int, duration_us: int) -> None:
            with workers(node, 0, 0) as victims:
                for victim in victims:
                    victim.ask("allocate", nbytes=100 * MIB)
                    assert victim.ask("hammer", duration_us=duration_us) == "hammering"
                time.sleep(delay_us / 1e6)
                for victim in victims:
                    victim.kill()

            answer = survivor.ask("run", steps=[("kernel", 500)])
            usage = observer.usage()
            (span,) = _spans(answer, "kernel")
            assert span[1] - span[0] == 500_000
            assert usage.gpu_memory_bytes == 0
            assert sum(bool(process.pid) for process in record.processes) == 2
            assert_in_order(record)

        check()


def test_capacity_holds_against_allocators_at_the_same_time(node: Path) -> None:
    """Whoever comes too late is refused; what was granted never exceeds the GPU."""
    with workers(node, 0, 0, 0) as together:

        @few
        @given(st.lists(st.lists(st.integers(0, 700), min_size=3, max_size=3), max_size=4))
        def check(rounds: list[list[int]]) -> None:
            granted_mib = 0
            for wanted_mib in rounds:
                for worker, mib in zip(together, wanted_mib, strict=True):
                    worker.tell("allocate", nbytes=mib * MIB)
                answers = [worker.hear() for worker in together]
                refused = [isinstance(answer, dict) for answer in answers]
                granted_mib += sum(
                    mib for mib, no in zip(wanted_mib, refused, strict=True) if not no
                )
                assert granted_mib <= 1024
                assert all(answer <= 1024 * MIB for answer in answers if isinstance(answer, int))
                for mib, no in zip(wanted_mib, refused, strict=True):
                    assert not no or mib + granted_mib > 1024
            assert [worker.ask("free") for worker in together] == [0, 0, 0]

        check()


def _run(told: list[Worker], steps: Any) -> list[Any]:  # noqa: ANN401 (JSON both ways)
    for worker, program in zip(told, steps, strict=True):
        worker.tell("run", steps=program)
    return [worker.hear() for worker in told]


def _spans(answer: Any, kind: str) -> list[tuple[int, int]]:  # noqa: ANN401 (JSON of a worker)
    return [(start, end) for name, start, end in answer["spans"] if name == kind]


def _last_second_pct(node: Path, now_ns: int) -> float:
    ran = history(gpu_state.map_node(node).gpus[0], gpu_state.COMPUTE)
    spans = [(one.start_ns, one.end_ns) for one in ran]
    return _within(spans, now_ns - 1_000_000_000, now_ns) / 10_000_000


def _assert_apart(spans: Iterator[tuple[int, int]]) -> None:
    for before, after in itertools.pairwise(sorted(spans)):
        assert before[1] <= after[0]


def _within(spans: list[tuple[int, int]], from_ns: int, to_ns: int) -> int:
    return sum(max(0, min(end, to_ns) - max(start, from_ns)) for start, end in spans)
