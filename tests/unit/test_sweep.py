# SPDX-License-Identifier: Apache-2.0
"""The sweep: a plan that never changes, and GPU time and memory that follow from torch's work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from slipstream.estimator.runs_csv import read_csv

torch = pytest.importorskip("torch", reason="torch is not installed")

from sweep import __main__ as sweep  # noqa: E402 (they need torch)
from sweep.plan import MOST_RANKS, configurations  # noqa: E402
from sweep.roofline import Meter, Peaks  # noqa: E402

pytestmark = pytest.mark.unit

PEAKS = Peaks(flops_per_s=1e9, half_flops_per_s=4e9, bytes_per_s=1e12, kernel_s=1e-6)


def seconds(meter: Meter, part: str) -> float:
    """The time of a part in all."""
    return sum(meter.kernels_s[part])


def test_the_plan_is_the_same_at_every_start() -> None:
    """Seeds are numbers in it, so that a table tells what is missing."""
    plan = configurations()
    assert plan == configurations()
    assert [one.seed for one in plan] == list(range(len(plan)))
    assert len(plan) >= 300
    of_ranks = Counter(one.ranks for one in plan)
    assert set(of_ranks) == set(range(1, MOST_RANKS + 1))


def test_a_submission_is_what_a_user_would_type() -> None:
    """One GPU of each node, and every hyper-parameter on the command line."""
    ddp = next(one for one in configurations() if one.ranks == MOST_RANKS)
    words = sweep.submission(ddp, Path("out"))
    assert f"--nodes={MOST_RANKS}" in words
    assert "--gres=gpu:1" in words
    script = words[-1].removeprefix("--wrap=exec ")
    assert script.startswith("srun ")
    assert f"{ddp.kind}.py" in script
    assert script.endswith(f"--seed={ddp.seed}")


def test_arithmetic_takes_the_time_of_its_products() -> None:
    """Two for each weight and sample forward, four backward; half precision has its own peak."""
    meter = Meter(PEAKS)
    layer = torch.nn.Linear(64, 128, bias=False)
    batch = torch.randn(32, 64, requires_grad=True)
    with meter.part("forward"):
        made = layer(batch)
    with meter.part("backward"):
        made.backward(torch.ones_like(made))
    products_s = 2 * 32 * 64 * 128 / 1e9
    assert seconds(meter, "forward") == pytest.approx(products_s, rel=0.05)
    assert seconds(meter, "backward") == pytest.approx(2 * products_s, rel=0.05)
    with meter.part("half"):
        layer.bfloat16()(batch.bfloat16())
    assert seconds(meter, "half") == pytest.approx(products_s / 4, rel=0.2)


def test_what_only_moves_memory_takes_the_time_of_its_bytes() -> None:
    """Read once, written once; a view moves nothing, and a tiny kernel has its least time."""
    meter = Meter(Peaks(flops_per_s=1e15, bytes_per_s=1e9, kernel_s=1e-6))
    large, small = torch.ones(1 << 20), torch.ones(1)
    with meter.part("large"):
        torch.relu(large)
    with meter.part("view"):
        large.view(1024, 1024)
    with meter.part("small"):
        torch.relu(small)
    assert seconds(meter, "large") == pytest.approx(2 * (4 << 20) / 1e9)
    assert seconds(meter, "view") == 0
    assert seconds(meter, "small") == 1e-6


def test_an_lstm_and_attention_are_counted_too() -> None:
    """Torch has no formula for what its CPU runs there."""
    meter = Meter(PEAKS)
    text = torch.randn(4, 8, 16, requires_grad=True)
    with meter.part("lstm"):
        torch.nn.LSTM(16, 16, batch_first=True)(text)
    assert seconds(meter, "lstm") >= 2 * 4 * 8 * (2 * 4 * 16 * 16) / 1e9
    with meter.part("attention"):
        torch.nn.functional.scaled_dot_product_attention(text, text, text)
    assert seconds(meter, "attention") >= 4 * 4 * 8 * 8 * 16 / 1e9


def test_memory_is_what_lives_at_once() -> None:
    """What is dropped is free again; a view takes nothing."""
    meter = Meter(PEAKS)
    with meter.part("all"):
        kept = torch.ones(1 << 18)
        for _ in range(3):
            dropped = kept + 1
            dropped.view(2, -1)
            del dropped
    assert meter.live_bytes == kept.nbytes
    assert meter.peak_bytes == 2 * kept.nbytes


def test_the_table_is_of_this_plan() -> None:
    """Every row is a training of it that ran to its end, alone, and was measured."""
    plan = {one.seed: one for one in configurations()}
    with sweep.TABLE.open(encoding="utf-8") as lines:
        runs = list(read_csv(lines))
    assert len(runs) >= 300
    for run in runs:
        one = plan[int(run.numbers["arg.seed"])]
        assert run.family.endswith(f"/{one.kind}.py")
        for name, value in one.options.items():
            assert isinstance(value, str) or run.numbers[f"arg.{name}"] == value
        assert (run.alone, run.ranks, run.gpus, run.nodes) == (True, *[one.ranks] * 3)
        assert run.minibatches == one.options["minibatches"]
        assert run.gpu_memory_mib
        assert run.minibatch_ms
        assert run.run_s
        assert bool(run.network_mbps) == (one.ranks > 1)
