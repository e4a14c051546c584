# SPDX-License-Identifier: Apache-2.0
"""The example with several ranks: who is who, and that together they train one model."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import progress
import ranks
from data import Minibatches
from models import KINDS
from ranks import Place, RanksError
from slipstream.sandbox import gpus
from slipstream.torch_hooks import occupancy

pytestmark = pytest.mark.unit

PROGRAM = Path(__file__).parents[2] / "examples" / "ddp.py"
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums over several threads may differ in their last bit, and other tests may want more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def address_of_first(nodelist: str) -> str:
    """What Slurm would answer."""
    return f"address of the first of {nodelist}"


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, Place(3, 1, 4, "n1", 29500)),
        (SRUN, Place(3, 1, 4, "address of the first of n[1-2]", 20114)),
        (SRUN | {"SLURM_STEP_NUM_NODES": "1"}, Place(3, 1, 4, "127.0.0.1", 20114)),
        (SRUN | {"MASTER_ADDR": "n9", "MASTER_PORT": "1234"}, Place(3, 1, 4, "n9", 1234)),
        (SRUN | TORCHRUN, Place(3, 1, 4, "n1", 29500)),
    ],
    ids=["torchrun", "srun", "srun on one node", "srun told where to meet", "torchrun in a job"],
)
def test_a_rank_knows_its_place(environ: Mapping[str, str], place: Place) -> None:
    """Whoever started the ranks, each finds its number and where to meet."""
    assert ranks.place(environ, address_of_first) == place


@pytest.mark.parametrize("environ", [{}, BATCH], ids=["by hand", "a batch script without srun"])
def test_a_lone_process_is_told_how_to_start_ranks(environ: Mapping[str, str]) -> None:
    """Instead of waiting for ever for ranks that nobody started."""
    with pytest.raises(RanksError, match=r"`torchrun --standalone .*` or `srun --ntasks 2 .*`"):
        ranks.place(environ, address_of_first)


def test_jobs_on_one_node_meet_at_ports_of_their_own() -> None:
    """A thousand jobs in a row, and the first steps of each, share no port."""
    ports = {
        ranks.place(SRUN | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": step}, address_of_first).port
        for job in range(500)
        for step in ("0", "1")
    }
    assert len(ports) == 1000
    assert ports <= set(ranks.PORTS)


def test_jobs_of_two_clusters_on_one_machine_do_not_meet() -> None:
    """Both count their jobs from one: a rank would join the training of the other cluster."""
    environs = [SRUN | {"SLURM_CLUSTER_NAME": name} for name in ("one", "two")]
    assert len({ranks.place(environ, address_of_first).port for environ in environs}) == 2


def test_the_address_is_the_one_slurm_uses() -> None:
    """Nodes are not always reachable under their names."""
    shown = "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=gpu07 Version=22.05.8"
    assert ranks.parse_node_address(shown) == "10.0.0.7"


def test_an_answer_without_address_is_quoted() -> None:
    """What scontrol said instead is in the error."""
    with pytest.raises(RanksError, match="Node n1 not found"):
        ranks.parse_node_address("Node n1 not found")


def test_ranks_talk_on_the_way_to_rank_0() -> None:
    """On one machine over loopback; where no way is known, gloo may look for itself."""
    assert ranks.interface_towards(ranks.LOOPBACK) == "lo"
    assert ranks.interface_towards("localhost") == "lo"
    assert ranks.interface_towards("::1") is None


def test_two_ranks_train_one_model_across_interruptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun by torchrun, resumed as by srun, stopped: to the bit what one process does by hand."""
    path = tmp_path / "n1.gpus"
    gpus.create(path, cluster="examples", node="n1", gpus=2, memory_mib=1024)
    monkeypatch.setenv("SLIPSTREAM_GPU_STATE", str(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    common = ["--device=occupancy", "--kernel-ms=1", "--kernels-per-minibatch=2"]
    common += ["--memory-mib=100", "--report-every=1", f"--save={tmp_path / 'a.pt'}", "--resume"]

    begun = run_by_torchrun([*common, "--minibatches=5"])
    resumed = run_as_by_srun_and_stop_one([*common, "--minibatches=1000", "--host-ms=20"])

    saved = torch.load(tmp_path / "a.pt", weights_only=True)
    done = saved["minibatches_done"]
    assert 5 < done < 1000
    printed = [report for report in map(progress.parse, begun + resumed) if report]
    assert [report.minibatch for report in printed] == list(range(1, done + 1))
    busy_ns = [usage_of(ordinal).gpu_busy_ns for ordinal in range(2)]
    assert busy_ns == [done * 2 * 1_000_000] * 2
    expected = two_ranks_by_hand(minibatches=done)
    assert saved["model"].keys() == expected.keys()
    assert all(torch.equal(saved["model"][name], expected[name]) for name in expected)


def run_by_torchrun(arguments: list[str]) -> list[str]:
    """Run two ranks on this machine; give the lines they printed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv = [*launcher, "--nproc-per-node=2", "--local-addr=127.0.0.1", str(PROGRAM), *arguments]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=120, env=environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_as_by_srun_and_stop_one(arguments: list[str]) -> list[str]:
    """Run two ranks as a step on one node, terminate one of them; give the lines they printed."""
    step = SRUN | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "2"}
    step["MASTER_PORT"] = str(free_port())
    printing, silent = (
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | step | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank},
        )
        for rank in ("0", "1")
    )
    with printing, silent:
        try:
            assert printing.stdout is not None
            head = list(islice(printing.stdout, 4))
            silent.send_signal(signal.SIGTERM)
            tail, nothing = (process.communicate(timeout=60)[0] for process in (printing, silent))
        finally:  # ranks that wait for each other would wait for ever
            printing.kill()
            silent.kill()
    assert [printing.returncode, silent.returncode] == [0, 0], [*head, tail, nothing]
    assert nothing == ""
    lines = [*head, *tail.splitlines()]
    assert lines[-1].startswith("stopped")
    return lines


def free_port() -> int:
    """A port of loopback that nobody has."""
    with socket.create_server((ranks.LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


def usage_of(ordinal: int) -> occupancy.Usage:
    """What all processes have used of a GPU until now."""
    with occupancy.open_gpu(ordinal=ordinal) as gpu:
        return gpu.usage()


def two_ranks_by_hand(*, minibatches: int) -> dict[str, torch.Tensor]:
    """The mean of both ranks' gradients, in one process and without torch.distributed."""
    kind = KINDS["mlp"]
    torch.manual_seed(0)
    model = kind.build(kind.width, kind.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    samples = kind.samples(torch.Generator().manual_seed(0))
    parts = [Minibatches(samples, batch_size=32, seed=0, rank=r, ranks=2).after(0) for r in (0, 1)]
    for _ in range(minibatches):
        optimizer.zero_grad()
        for part in parts:
            inputs, targets = next(part)
            # Halves are exact in binary, so the mean of two may be taken before or after the sum.
            (cross_entropy(model(inputs), targets) / 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.state_dict()
