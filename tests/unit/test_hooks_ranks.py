# SPDX-License-Identifier: Apache-2.0
"""Ranks that train together: real processes over gloo, asked through their pages."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from hook_ranks import training
from slipstream.coordinator import asking
from slipstream.wire.control_block import Directive, Phase, Request

if TYPE_CHECKING:
    from pathlib import Path

    from hook_ranks import Ranks

pytestmark = pytest.mark.unit

MODEL = """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
UNEVEN = (
    MODEL
    + """
uneven = random.Random(rank)
while not is_over():
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(uneven.choice([0, 0, 0, 0.002, 0.01]))
"""
)
ACCUMULATING = (
    MODEL
    + """
for _ in range(5):
    with model.no_sync():
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""

PARKED = """
import hashlib
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(32, 65), torch.nn.ReLU(), torch.nn.Linear(65, 4))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.randn(16, 32)
losses = []
for number in range(30):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
kept = [one for one in model.parameters()]
kept += [one for state in optimizer.state.values() for one in state.values()]
assert any(isinstance(one, DTensor) for one in kept[len(list(model.parameters())):])
bits = hashlib.sha256(repr(losses).encode())
for one in kept:
    local = one.to_local() if isinstance(one, DTensor) else one
    bits.update(local.detach().contiguous().numpy().tobytes())
print(bits.hexdigest())
"""


def stand(ranks: Ranks, phase: Phase = Phase.PAUSED) -> bool:
    """Whether they all stand still."""
    return {page.progress.phase for page in ranks.pages} == {phase}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ACCUMULATING, id="DDP with no_sync"),
        pytest.param(ZERO, id="ZeroRedundancyOptimizer"),
        pytest.param(SHARDED, id="FSDP2"),
    ],
)
def test_each_rank_counts_its_mini_batches(program: str, tmp_path: Path) -> None:
    """Five steps are five boundaries, whatever happens inside them and between."""
    with training(program, 2, tmp_path) as ranks:
        ranks.end()
    assert ranks.minibatches() == [5, 5]
    assert [page.progress.problems for page in ranks.pages] == [0, 0]


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_stop_after_the_same_mini_batch(count: int, tmp_path: Path) -> None:
    """Ten times, at any moment of their uneven mini-batches; they never wait for each other."""
    epoch = 0
    moments = random.Random(count)  # noqa: S311 (no secret)
    with training(UNEVEN, count, tmp_path) as ranks:
        assert ranks.reach(4)
        for _ in range(10):
            before = max(ranks.minibatches())
            pause = asking.ask(ranks.pages, Directive(epoch + 1, request=Request.PAUSE))
            assert pause.armed_for_minibatch > before
            assert ranks.eventually(lambda: stand(ranks)), ranks.minibatches()
            assert set(ranks.minibatches()) == {pause.armed_for_minibatch}
            epoch = asking.ask(ranks.pages, Directive(pause.epoch + 1)).epoch
            assert ranks.reach(pause.armed_for_minibatch + moments.randint(1, 9))
        ranks.end()
    assert len(set(ranks.minibatches())) == 1


def test_ranks_that_were_stopped_apart_are_brought_together(tmp_path: Path) -> None:
    """A coordinator killed between two pages: one rank stands, the other waits for it."""
    with training(UNEVEN, 2, tmp_path) as ranks:
        assert ranks.reach(4)
        late, early = ranks.pages
        early.direct(Directive(1, request=Request.PAUSE))
        assert ranks.eventually(lambda: early.progress.phase == Phase.PAUSED)
        here = early.progress.minibatches
        assert ranks.eventually(lambda: late.progress.minibatches >= here)
        late.direct(Directive(1, request=Request.PAUSE, armed_for_minibatch=here + 1))

        found = asking.ask(ranks.pages, Directive(2, request=Request.PAUSE))
        assert ranks.eventually(lambda: stand(ranks))
        assert set(ranks.minibatches()) == {found.armed_for_minibatch}
        asking.ask(ranks.pages, Directive(9))
        ranks.end()


def test_fsdp2_shards_are_parked_and_come_back_to_the_bit(tmp_path: Path) -> None:
    """Parameters, gradients and Adam's state, all DTensors: twice away, and nobody can tell."""
    first, second = (
        Directive(epoch, request=Request.PARK, armed_for_minibatch=6 * epoch) for epoch in (1, 2)
    )
    with training(PARKED, 2, tmp_path / "parked", ask=first) as ranks:
        for asked, following in ((first, second), (second, Directive(3))):
            assert ranks.eventually(
                lambda at=asked.armed_for_minibatch: (  # type: ignore[misc]
                    stand(ranks, Phase.PARKED) and ranks.minibatches() == [at, at]
                )
            )
            for page in ranks.pages:
                page.direct(following)
        disturbed = ranks.end()
    assert [page.progress.problems for page in ranks.pages] == [0, 0]
    assert all(page.progress.parked_ns for page in ranks.pages)
    with training(PARKED, 2, tmp_path / "plain") as ranks:
        assert ranks.end() == disturbed
