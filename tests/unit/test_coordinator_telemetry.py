# SPDX-License-Identifier: Apache-2.0
"""What a node tells monitoring: network counters, labels, and whose GPUs they are."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import coordinated_node, eventually
from slipstream.coordinator import network
from slipstream.coordinator.gpus import GpuSample
from slipstream.coordinator.job_map import JobMap
from slipstream.coordinator.joining import Owner
from slipstream.coordinator.network import Device
from slipstream.coordinator.seats import Seat, Task
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: 1000 10 0 0 0 0 0 0 1000 10 0 0 0 0 0 0
  eth0: 5000 50 1 2 0 0 0 0 7000 70 3 4 0 0 0 0
 bond0:123456789012 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0
veth12: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0
docker0: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0
garbage: x
"""
TASK = Task("batch", 0, 100, 555)


def test_devices_of_the_nodes_own_are_counted(tmp_path: Path) -> None:
    """Ethernet as the kernel has it, InfiniBand from its ports, in words of four bytes."""
    (tmp_path / "self/net").mkdir(parents=True)
    (tmp_path / "self/net/dev").write_text(NET_DEV)
    port = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
    port.mkdir(parents=True)
    for name, value in (("port_rcv_data", 100), ("port_xmit_data", 25), ("port_rcv_errors", 1)):
        (port / name).write_text(f"{value}\n")
    (tmp_path / "class/infiniband/mlx5_1/ports/1/counters").mkdir(parents=True)  # tells nothing
    assert network.devices(tmp_path, tmp_path) == [
        Device("bond0", 123456789012, 9),
        Device("eth0", 5000, 7000, 10),
        Device("mlx5_0:1", 400, 100, 1),
    ]
    assert network.devices(tmp_path / "none", tmp_path / "none") == []


def gpu(index: int) -> GpuSample:
    """One of them."""
    return GpuSample(
        at_s=0.0,
        index=index,
        uuid=f"GPU-{index}",
        minor=index,
        use_pct=0,
        memory_used_mib=0,
        memory_mib=1024,
    )


def test_dcgm_exporter_finds_the_jobs_of_each_gpu(tmp_path: Path) -> None:
    """A file by index, a number in each line; the owner first, whoever has left not at all."""
    folder = tmp_path / "map"
    jobs = JobMap(folder)
    seats = {
        7: Seat(7, 0, Role.GUEST, "shared", "", ("GPU-0",), (TASK,)),
        8: Seat(8, 0, Role.GUEST, "shared", "", ("GPU-0", "GPU-1"), ()),
        9: Seat(9, 0, Role.OWNER, "guaranteed", "", ("GPU-0",), (TASK,)),
    }
    jobs.publish([gpu(0), gpu(1)], seats, {"GPU-0": Owner(9, takes_guests=True)})
    read = {path.name: path.read_text() for path in folder.iterdir()}
    assert read == {"0": "9\n7\n", "1": ""}
    (folder / "0").unlink()
    jobs.publish([gpu(0), gpu(1)], seats, {"GPU-0": Owner(9, takes_guests=True)})
    assert not (folder / "0").exists(), "written only where it is new"
    jobs.publish([gpu(0), gpu(1)], {}, {})
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"0": "", "1": ""}
    JobMap(None).publish([gpu(0)], seats, {})


def test_a_folder_that_cannot_be_written_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log."""
    (tmp_path / "file").touch()
    JobMap(tmp_path / "file").publish([gpu(0)], {}, {})
    assert "dcgm-exporter" in caplog.text


def test_metrics_say_cluster_host_and_job(tmp_path: Path) -> None:
    """On everything that a coordinator tells; and its guest is in the map."""
    with socket.create_server(("127.0.0.2", 0)) as probe:
        port = probe.getsockname()[1]
    by_tcp = ("--metrics-address=127.0.0.2", f"--metrics-port={port}")
    with coordinated_node("--cluster=deep", f"--dcgm-job-dir={tmp_path}/map", *by_tcp) as node:
        node.ask(job=5)
        with socket.create_connection(("127.0.0.2", port), 30) as scrape:
            scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
            assert "slipstream_link_up{" in scrape.makefile().read()
        told = node.metrics(labelled=True)
        assert all('cluster="deep"' in name and 'host="n1"' in name for name in told)
        phase = {'job="5"', 'jobid="5"', 'phase="unclaimed"'}
        found = [name for name in told if name.startswith("slipstream_job_phase{")]
        assert [phase <= set(name.partition("{")[2].strip("}").split(",")) for name in found] == [
            True
        ]
        assert node.metrics()["slipstream_link_up"] == 0
        assert eventually((tmp_path / "map" / "0").exists)
        assert eventually(lambda: (tmp_path / "map" / "0").read_text() == "5\n")
