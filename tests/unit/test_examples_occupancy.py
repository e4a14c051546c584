# SPDX-License-Identifier: Apache-2.0
"""The example trainer on simulated GPUs: it occupies what it was told to, and really learns."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import devices
import options
import progress
import train
from devices import Device, DeviceError, Work
from progress import Report
from slipstream.sandbox import gpus
from slipstream.torch_hooks import occupancy
from team import Alone
from trainer import Trainer

pytestmark = pytest.mark.unit

MIB = 1 << 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the program sets it for its process; other tests may want more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The memory of a node with two GPUs of 1 GiB, of which this process sees the second."""
    path = tmp_path / "n1.gpus"
    gpus.create(path, cluster="examples", node="n1", gpus=2, memory_mib=1024)
    monkeypatch.setenv("SLIPSTREAM_GPU_STATE", str(path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    return path


def usage(ordinal: int = 0) -> occupancy.Usage:
    """What all processes have used of a GPU until now."""
    with occupancy.open_gpu(ordinal=ordinal) as gpu:
        return gpu.usage()


@pytest.mark.usefixtures("node")
def test_the_kernels_asked_for_are_the_time_the_gpu_is_busy() -> None:
    """Ten mini-batches of four kernels of 2 ms are 80 ms, to the nanosecond."""
    arguments = ["--device", "occupancy", "--minibatches", "10", "--memory-mib", "100"]
    assert train.main([*arguments, "--kernel-ms", "2", "--kernels-per-minibatch", "4"]) == 0
    after = usage()
    assert after.gpu_busy_ns == 80_000_000
    assert after.gpu_copying_ns > 0
    assert after.gpu_memory_bytes == 0


@pytest.mark.usefixtures("node")
def test_a_loss_is_read_only_after_its_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    """Each mini-batch takes at least its kernels' time: the trainer cannot run ahead of the GPU."""
    arguments = ["--minibatches", "5", "--report-every", "1", "--memory-mib", "0"]
    assert train.main([*arguments, "--kernel-ms", "5", "--kernels-per-minibatch", "2"]) == 0
    reports = reports_in(capsys)
    assert len(reports) == 5
    assert min(report.duration_ms for report in reports) >= 10


@pytest.mark.usefixtures("node")
def test_host_time_chooses_the_use_of_the_gpu() -> None:
    """Beside 12 ms of kernels, 8 ms of host make 60 %: seen in the mini-batch least disturbed."""
    arguments = ["--minibatches", "20", "--memory-mib", "0", "--kernel-ms", "3", "--host-ms", "8"]
    settings = options.parse(arguments, None)
    with devices.opened("occupancy", settings.work) as device:
        shortest_ms = min(Trainer(settings, device, Alone()).minibatches())
    assert usage().gpu_busy_ns == 20 * 12_000_000
    assert 0.4 < 12 / shortest_ms <= 0.6


@pytest.mark.usefixtures("node")
def test_memory_is_held_while_the_device_is_open() -> None:
    """From start to end the GPU shows what was asked for, and nothing afterwards."""
    with devices.opened("occupancy", Work(1, 1, memory_mib=700)):
        assert usage().gpu_memory_bytes == 700 * MIB
    assert usage().gpu_memory_bytes == 0


@pytest.mark.usefixtures("node")
def test_out_of_memory_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What was asked for, what there is and who holds it; exit code 1 and no traceback."""
    with occupancy.open_gpu() as gpu, gpu.allocate(600 * MIB):
        assert train.main(["--device", "occupancy", "--memory-mib", "500"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(
        "error: Occupancy GPU out of memory. Tried to allocate 500.00 MiB"
    )
    assert printed.err.count("\n") == 1


def test_a_gpu_lost_while_training_is_one_clear_line(
    node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The GPU falls off the bus between two mini-batches; the trainer says so and ends with 1."""
    settings = options.parse(["--memory-mib", "0", "--kernel-ms", "1"], None)

    def lose_the_gpu_while_training() -> None:
        with devices.opened("occupancy", settings.work) as device:
            for _ in Trainer(settings, device, Alone()).minibatches():
                gpus.lose(node, 1)

    with pytest.raises(DeviceError, match=r"GPU 1 .* is lost"):
        lose_the_gpu_while_training()
    assert train.main(["--memory-mib", "0"]) == 1
    assert "is lost" in capsys.readouterr().err


@pytest.mark.usefixtures("node")
def test_losses_are_those_of_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The model is a real one: the simulated GPU changes its times and none of its numbers."""
    arguments = ["--model", "transformer", "--minibatches", "6", "--report-every", "1"]
    arguments += ["--kernel-ms", "0.1", "--memory-mib", "1"]
    losses = []
    for device in ("cpu", "occupancy"):
        assert train.main([*arguments, "--device", device]) == 0
        losses.append([report.loss for report in reports_in(capsys)])
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto takes the CUDA GPU of this machine")
@pytest.mark.parametrize(
    ("visible", "name"),
    [("1", "occupancy GPU 1"), ("0,1", "occupancy GPU 0"), ("", "cpu"), ("-1", "cpu")],
)
@pytest.mark.usefixtures("node")
def test_auto_takes_a_visible_simulated_gpu(
    visible: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Slurm gave the job no GPU, the trainer uses none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert name_of_auto() == name


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto takes the CUDA GPU of this machine")
def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop needs nothing of Slipstream to try the examples."""
    monkeypatch.delenv("SLIPSTREAM_GPU_STATE", raising=False)
    assert name_of_auto() == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto takes the CUDA GPU of this machine")
def test_gpus_promised_but_not_there_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong SLIPSTREAM_GPU_STATE is a mistake to be seen, no reason to train on the CPU."""
    monkeypatch.setenv("SLIPSTREAM_GPU_STATE", str(tmp_path / "nothing"))
    assert train.main([]) == 1
    assert str(tmp_path / "nothing") in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto takes the CUDA GPU of this machine")
@pytest.mark.usefixtures("node")
def test_a_missing_slipstream_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python finds no hooks: the trainer says what to install instead of using the CPU."""
    monkeypatch.delitem(sys.modules, "occupancy_device", raising=False)
    monkeypatch.setitem(sys.modules, "slipstream.torch_hooks", None)
    assert train.main([]) == 1
    assert "slipstream.torch_hooks of the Python package slurm-slipstream-hooks" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(("local_rank", "visible", "index"), [(1, "0,1", 1), (1, "1", 1)])
@pytest.mark.usefixtures("node")
def test_each_rank_takes_a_gpu_of_its_own(
    local_rank: int, visible: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a task sees all GPUs of the node or Slurm shows it only one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with devices.opened("occupancy", Work(1, 1, 0), local_rank=local_rank) as device:
        assert device.name == f"occupancy GPU {index}"


def name_of_auto() -> str:
    """The device that `auto` opens here."""
    opened: Device
    with devices.opened("auto", Work(1, 1, 0)) as opened:
        return opened.name


def reports_in(capsys: pytest.CaptureFixture[str]) -> list[Report]:
    """The mini-batches printed since the last call."""
    lines = capsys.readouterr().out.splitlines()
    return [report for report in map(progress.parse, lines) if report]
