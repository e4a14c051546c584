# SPDX-License-Identifier: Apache-2.0
"""Train one model in several processes with DistributedDataParallel.

Started by torchrun (`torchrun --standalone --nproc-per-node 2 ddp.py …`) or by Slurm
(`srun --ntasks 2 python ddp.py …`). Gradients travel by gloo, on CUDA GPUs by NCCL.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

# Imported by torch itself once the ranks have joined, its functions would keep the group as their
# default: gloo's threads then outlive destroy_process_group, and now and then abort the exit.
import torch.distributed.nn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import options
import ranks
import train
from ranks import Place, RanksError


def main(argv: Sequence[str] | None = None) -> int:
    """Train this rank's part as the command line says; return the exit code."""
    settings = options.parse(argv, __doc__)
    try:
        place = ranks.place(os.environ, ranks.ask_slurm_for_address)
    except RanksError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with joined(place):
        return train.run(settings, Joined(place), local_rank=place.local_rank)


class Joined:
    """A team of processes, joined by torch.distributed."""

    def __init__(self, place: Place) -> None:
        self.rank = place.rank
        self.ranks = place.ranks

    def replicate(self, model: nn.Module) -> nn.Module:
        """Average the model's gradients over the ranks in each backward pass."""
        return DistributedDataParallel(model)

    def anyone(self, *, says: bool) -> bool:
        """Agree by a collective: a rank that stopped alone would leave the others waiting."""
        said = torch.tensor(int(says))
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return bool(said)

    def gather(self, state: Tensor) -> list[Tensor]:
        """Collect every rank's tensor."""
        gathered = [torch.empty_like(state) for _ in range(self.ranks)]
        dist.all_gather(gathered, state)
        return gathered


@contextmanager
def joined(place: Place) -> Iterator[None]:
    """Join the other ranks for a while."""
    # Left to itself gloo takes the interface that the host's name resolves to: often loopback.
    interface = ranks.interface_towards(place.address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.update(MASTER_ADDR=place.address, MASTER_PORT=str(place.port))
    backends = "cpu:gloo,cuda:nccl" if dist.is_nccl_available() else "gloo"
    dist.init_process_group(backends, rank=place.rank, world_size=place.ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
