# SPDX-License-Identifier: Apache-2.0
"""What a job finds in a sandbox: its GPUs, NVML, its seats, its CPUs, its accounts, its network."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import with_books
from slipstream.sandbox import Sandbox, Shape, status

if TYPE_CHECKING:
    from collections.abc import Callable

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).parents[2]
NVML = """
import json, os, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps({
    "node": os.environ["SLURMD_NODENAME"],
    "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "uuids": [pynvml.nvmlDeviceGetUUID(handle) for handle in handles],
}))
"""
OPEN_LAST = "from slipstream.torch_hooks import occupancy; occupancy.open_gpu(ordinal=1)"


def srun(cluster: Sandbox, *words: str) -> list[str]:
    """The lines printed by a job step."""
    return cluster.run("srun", "--quiet", *words).stdout.splitlines()


def submit(cluster: Sandbox, *words: str) -> str:
    """The number of a batch job whose output nobody reads."""
    return cluster.run("sbatch", "--parsable", "--output=/dev/null", *words).stdout.strip()


def states(cluster: Sandbox, *jobs: str) -> dict[str, str]:
    """Job number to Slurm's short state, ended jobs left out."""
    shown = cluster.run("squeue", "-h", "-o", "%i %t", f"--jobs={','.join(jobs)}", check=False)
    return dict(line.split() for line in shown.stdout.splitlines())


def test_a_job_sees_its_own_node_through_nvml(cluster: Sandbox) -> None:
    """Each node has GPUs of its own, with names of their own, behind the real pynvml."""
    found = [
        json.loads(line)
        for line in srun(cluster, "-N2", "--gres=gpu:1", sys.executable, "-c", NVML)
    ]
    assert {one["node"] for one in found} == {"n1", "n2"}
    assert all(one["visible"] == "0" for one in found)
    assert len({uuid for one in found for uuid in one["uuids"]}) == 4


def test_slurm_deals_out_each_gpu_once(cluster: Sandbox) -> None:
    """Two one-GPU jobs on one node get different devices."""
    words = ("--gres=gpu:1", "--nodelist=n1", "--wrap=sleep 60")
    jobs = [submit(cluster, *words), submit(cluster, *words)]
    while set(states(cluster, *jobs).values()) != {"R"}:
        time.sleep(0.1)
    shown = [cluster.run("scontrol", "-d", "show", "job", job).stdout for job in jobs]
    indices = sorted(text.split("(IDX:")[1].split(")")[0] for text in shown)
    cluster.run("scancel", *jobs)
    assert indices == ["0", "1"]


def test_guests_hold_slots_beside_owners(cluster: Sandbox) -> None:
    """A node whose GPUs are all owned still has seats: six jobs of one slot run beside them."""
    owner = submit(cluster, "--gres=gpu:2", "--nodelist=n2", "--wrap=sleep 60")
    guests = [
        submit(cluster, "--gres=slot:1", "--nodelist=n2", "--wrap=sleep 60") for _ in range(7)
    ]
    deadline = time.monotonic() + 60
    while list(states(cluster, owner, *guests).values()).count("R") < 7:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found = states(cluster, owner, *guests)
    cluster.run("scancel", owner, *guests)
    assert found[owner] == "R"
    assert sorted(found[guest] for guest in guests) == ["PD", *["R"] * 6]


def test_a_training_job_is_seen_by_nvml_from_outside(
    cluster: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """The example script by sbatch: use and memory show on exactly the GPU Slurm gave it."""
    output = tmp_path / "train.out"
    job = cluster.run(
        *("sbatch", "--parsable", "--gres=gpu:1", "--nodelist=n1", f"--output={output}"),
        *(str(ROOT / "examples/train.sh"), "--model=mlp", "--minibatches=2000"),
        *("--kernel-ms=10", "--kernels-per-minibatch=4", "--host-ms=10", "--memory-mib=512"),
    ).stdout.strip()
    assert eventually(lambda: output.exists() and "mini-batch 40/" in output.read_text()), (
        output.read_text() if output.exists() else "no output"
    )
    time.sleep(1.5)  # NVML looks back one second
    found = {(one.node, one.index): one for one in status.sample_gpus(cluster)}
    cluster.run("scancel", job)
    assert found["n1", 0].memory_used_mib == 512
    assert found["n1", 0].processes == 1
    assert 40 <= found["n1", 0].use_pct <= 90
    assert [one.use_pct for place, one in found.items() if place != ("n1", 0)] == [0, 0, 0]
    assert eventually(lambda: all(not one.processes for one in status.sample_gpus(cluster)))


def test_a_lost_gpu_is_seen_by_the_job_and_by_nvml(cluster: Sandbox) -> None:
    """A fault injected from outside reaches both, and is healed again."""

    def fault(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "slipstream.cli", "sandbox", "fault", *words]
        argv += ["--name", cluster.layout.name, "--home", str(cluster.layout.home)]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    assert fault("n2", "1", "--lost").returncode == 0
    try:
        (lost,) = [one for one in status.sample_gpus(cluster) if one.error]
        assert (lost.node, lost.index) == ("n2", 1)
        assert "lost" in lost.error.lower()
        refused = cluster.run(
            *("srun", "--quiet", "-w", "n2", "--gres=gpu:2", sys.executable, "-c", OPEN_LAST),
            check=False,
        )
        assert "DeviceLostError" in refused.stderr
    finally:
        assert fault("n2", "1", "--healed").returncode == 0
    assert "with GPUs 0 to 1" in fault("n2", "7", "--lost").stderr
    assert not [one for one in status.sample_gpus(cluster) if one.error]


def test_the_device_nodes_are_all_different(cluster: Sandbox) -> None:
    """No two fake GPUs share a device number, so that denying one never denies another."""
    devices = [path for node in ("n1", "n2") for path in cluster.layout.devices(node).iterdir()]
    assert len(devices) == 4
    assert all(path.is_char_device() for path in devices)
    assert len({path.stat().st_rdev for path in devices}) == 4


def test_output_is_appended_when_a_job_is_requeued(
    cluster: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """JobFileAppend: the first run's lines are still there after the second."""
    output = tmp_path / "twice.out"
    job = cluster.run(
        *("sbatch", "--parsable", f"--output={output}"),
        "--wrap=echo run ${SLURM_RESTART_COUNT:-0}; sleep 60",
    ).stdout.strip()
    assert eventually(lambda: output.exists() and "run 0" in output.read_text())
    cluster.run("scontrol", "requeue", job)
    assert eventually(lambda: "run 1" in output.read_text())
    assert output.read_text().startswith("run 0\n")
    cluster.run("scancel", job)


def test_owners_can_hold_all_cpus(tmp_path: Path, eventually: Eventually) -> None:
    """The shape in which guests find no CPU: all GPUs taken, a one-CPU job has to wait."""
    shape = Shape(nodes=1, gpus_per_node=2, racks=1, cpus_per_node=4, owners_hold_all_cpus=True)
    with Sandbox.started(shape, name="full", home=tmp_path) as sandbox:
        owners = [submit(sandbox, "--gpus=1", "--wrap=sleep 60") for _ in range(2)]
        assert eventually(lambda: set(states(sandbox, *owners).values()) == {"R"})
        guest = submit(sandbox, "--gres=slot:1", "--wrap=sleep 60")
        reason = ("squeue", "-h", "-o", "%r", f"--jobs={guest}")
        assert eventually(lambda: sandbox.run(*reason).stdout.strip() == "Resources")


def test_accounts_are_kept_in_a_database_of_its_own(tmp_path: Path, eventually: Eventually) -> None:
    """With --accounting a job of a known account is recorded, one of another is refused."""
    shape = Shape(nodes=1, gpus_per_node=1, racks=1)
    with with_books(shape, tmp_path) as sandbox:
        job = submit(sandbox, "--account=production", "--gres=gpu:1", "--wrap=true")
        words = ("sacct", "-n", "-P", "-X", "-o", "account,state,alloctres", f"--jobs={job}")
        assert eventually(lambda: "COMPLETED" in sandbox.run(*words).stdout)
        assert sandbox.run(*words).stdout.startswith("production|COMPLETED|")
        assert "gres/gpu=1" in sandbox.run(*words).stdout
        refused = sandbox.run("sbatch", "--account=nobody", "--wrap=true", check=False)
        assert "Invalid account" in refused.stderr


RECEIVE = """
import socket, sys, time
with socket.create_server(("", 9000)) as server:
    peer, _ = server.accept()
    begun, got = time.monotonic(), 0
    while data := peer.recv(1 << 20):
        got += len(data)
    print(got / (time.monotonic() - begun))
"""
SEND = """
import socket, sys, time
for _ in range(100):
    try:
        peer = socket.create_connection((sys.argv[1], 9000))
        break
    except OSError:
        time.sleep(0.1)
peer.sendall(bytes(int(sys.argv[2])))
"""


def test_nodes_have_networks_of_their_own_and_racks_narrow_uplinks(tmp_path: Path) -> None:
    """With --netns a transfer to another rack is held to the uplink's rate, within a rack not."""
    interfaces = subprocess.run(["ip", "-br", "link"], capture_output=True, check=True).stdout
    shape = Shape(nodes=3, gpus_per_node=1, racks=2, uplink_mbit=80)
    with Sandbox.started(shape, name="net", home=tmp_path, netns=True) as sandbox:
        assert srun(sandbox, "pwd") == [str(Path.cwd())]
        racks = shape.rack_nodes
        assert [len(nodes) for nodes in racks.values()] == [2, 1]

        def bytes_per_s(source: str, target: str, nbytes: int) -> float:
            receive = ("srun", "--quiet", "-w", target, sys.executable, "-c", RECEIVE)
            with subprocess.Popen(
                sandbox.argv(receive), env=sandbox.environment, stdout=subprocess.PIPE, text=True
            ) as receiver:
                srun(sandbox, "-w", source, sys.executable, "-c", SEND, target, str(nbytes))
                return float(receiver.communicate()[0])

        near = bytes_per_s("n1", "n2", 64 << 20)
        across = bytes_per_s("n1", "n3", 8 << 20)
        assert 0.6 * 10e6 < across < 1.4 * 10e6  # 80 Mbit/s are 10 MB/s, less headers, plus a burst
        assert near > 4 * across
        during = subprocess.run(["ip", "-br", "link"], capture_output=True, check=True).stdout
        assert during == interfaces
    after = subprocess.run(["ip", "-br", "link"], capture_output=True, check=True).stdout
    assert after == interfaces
