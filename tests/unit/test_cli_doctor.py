# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of what it sees: every fault is found, with something to do about it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.cli.doctor import facts, places
from slipstream.cli.doctor.checks import CHECKS
from slipstream.cli.doctor.facts import Facts, Node, settings_in
from slipstream.cli.doctor.findings import Verdict
from slipstream.cli.doctor.places import Durable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

CONFIG = {
    "GresTypes": "gpu,slot",
    "JobFileAppend": "1",
    "JobRequeue": "1",
    "JobSubmitPlugins": "require_timelimit,lua",
    "PreemptMode": "OFF",
    "SchedulerParameters": "bf_interval=30,defer",
    "SelectType": "select/cons_tres",
}
SHARED = Durable(path="/shared/slipstream")
HERE = Node(name="n1", gpus=4, ramdisk_mib=50_000, memory_mib=100_000, cgroups=2, durable=SHARED)
HEALTHY = Facts(
    config=CONFIG,
    version="slurm-wlm 22.05.8",
    flags=True,
    job_submit='slipstream = require("slipstream")',
    scheduler={
        "mode": "advise",
        "carrier": "board",
        "switched_off": False,
        "slurm_away": None,
        "version": "0.1.0",
    },
    own_version="0.1.0",
    clock_off_s=0.8,
    wrapper="22.05.8-4",
    slurmctld_package="22.05.8-4",
    sockets="",
    nodes=(
        {"node": "n1", "gpus": 4, "gpus_used": 4, "cpus": 32, "cpus_used": 24, "devices": [{}]},
        {"node": "c1", "gpus": 0, "gpus_used": 0, "cpus": 32, "cpus_used": 32, "devices": []},
    ),
    node=HERE,
)


CONTAINED = {**CONFIG, "JobContainerType": "job_container/tmpfs"}


def found(facts: Facts) -> dict[str, Verdict]:
    """What is not as it should be; each has something to do about it."""
    odd = [one for check in CHECKS for one in check(facts) if one.verdict is not Verdict.GOOD]
    assert all(one.fix for one in odd)
    return {one.check: one.verdict for one in odd}


def without(**changes: str) -> dict[str, str]:
    """The configuration with other settings."""
    return {**CONFIG, **changes}


def test_a_node_may_be_on_another_host_than_the_scheduler() -> None:
    """No socket of it is there; whether it hears the coordinator counts."""
    away = replace(HEALTHY, scheduler=None, scheduler_said="does not answer", nodes=())
    assert found(replace(away, node=replace(HERE, linked=True))) == {}
    lost = replace(away, node=replace(HERE, linked=False))
    assert found(lost) == {"scheduler": Verdict.BAD, "link": Verdict.BAD}
    assert found(replace(away, node=HERE)) == {"scheduler": Verdict.BAD}


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    """Neither on a node nor on the controller; and all is told of."""
    assert found(HEALTHY) == {}
    assert found(replace(HEALTHY, node=None)) == {}
    assert sum(1 for check in CHECKS for _ in check(HEALTHY)) == 17


@pytest.mark.parametrize(
    ("change", "check", "verdict"),
    [
        ({"config": None, "slurm_said": "refused"}, "slurmctld", Verdict.BAD),
        ({"version": "slurm 19.05.5"}, "Slurm's version", Verdict.NOTE),
        ({"munge": "Expired credential"}, "munge", Verdict.BAD),
        ({"config": without(GresTypes="gpu,slots")}, "GresTypes", Verdict.BAD),
        ({"config": without(JobSubmitPlugins="all_partitions")}, "JobSubmitPlugins", Verdict.BAD),
        ({"job_submit": "function slurm_job_submit() end"}, "job_submit.lua", Verdict.BAD),
        ({"flags": False}, "flags", Verdict.BAD),
        ({"config": without(SchedulerParameters="x")}, "SchedulerParameters", Verdict.BAD),
        ({"config": without(SelectType="select/linear")}, "SelectType", Verdict.NOTE),
        ({"config": without(PreemptMode="GANG,SUSPEND")}, "PreemptMode", Verdict.BAD),
        ({"config": without(JobRequeue="0")}, "JobRequeue", Verdict.NOTE),
        ({"config": without(JobFileAppend="0")}, "JobFileAppend", Verdict.NOTE),
        (
            {"config": CONTAINED, "node": replace(HERE, run_dir="/dev/shm/x")},  # noqa: S108 (no file)
            "JobContainerType",
            Verdict.BAD,
        ),
        (
            {"config": CONTAINED, "node": replace(HERE, below_shm=("/dev/shm/x",))},  # noqa: S108 (no file)
            "JobContainerType",
            Verdict.BAD,
        ),
        ({"topology": False}, "topology", Verdict.NOTE),
        ({"scheduler": None, "scheduler_said": "nobody"}, "scheduler", Verdict.BAD),
        (
            {"nodes": ({"node": "n2", "gpus": 4, "gpus_used": 0, "devices": []},)},
            *("coordinators", Verdict.BAD),
        ),
        ({"node": replace(HERE, gpu_error="no library")}, "GPU driver", Verdict.BAD),
        ({"node": replace(HERE, mig=(1,))}, "MIG", Verdict.NOTE),
        ({"node": replace(HERE, coordinator="refused")}, "coordinator", Verdict.BAD),
        ({"node": replace(HERE, ramdisk_mib=64)}, "ramdisk", Verdict.NOTE),
        ({"config": without(ConstrainDevices="yes")}, "cgroups", Verdict.BAD),
        ({"clock_off_s": 40.0}, "clock", Verdict.BAD),
        ({"clock_off_s": -40.0}, "clock", Verdict.BAD),
        ({"own_version": "0.2.0"}, "versions", Verdict.BAD),
        ({"slurmctld_package": "24.11.5-4"}, "select wrapper", Verdict.BAD),
        ({"sockets": "submit.sock: no such file"}, "permissions", Verdict.BAD),
        ({"nodes": ({**HEALTHY.nodes[0], "cpus_used": 32},)}, "CPUs", Verdict.NOTE),
        ({"node": replace(HERE, durable=None)}, "shared filesystem", Verdict.NOTE),
        (
            {"node": replace(HERE, durable=replace(SHARED, error="no such folder"))},
            *("shared filesystem", Verdict.BAD),
        ),
        (
            {"node": replace(HERE, durable=replace(SHARED, mode=0o755))},
            *("shared filesystem", Verdict.BAD),
        ),
        (
            {"node": replace(HERE, durable=replace(SHARED, kind="ext4"))},
            *("shared filesystem", Verdict.NOTE),
        ),
        (
            {"node": replace(HERE, durable=replace(SHARED, options="rw,soft"))},
            *("shared filesystem", Verdict.NOTE),
        ),
    ],
)
def test_each_fault_is_found(change: dict[str, Any], check: str, verdict: Verdict) -> None:
    """That one, and no other."""
    assert found(replace(HEALTHY, **change)) == {check: verdict}


def test_a_node_whose_scheduler_is_on_another_host_is_healthy() -> None:
    """Its coordinator says that it is heard; one that is not is told where to look."""
    away = replace(HEALTHY, scheduler=None, scheduler_said="no socket", nodes=())
    assert found(replace(away, node=replace(HERE, linked=True))) == {}
    assert found(away) == {"scheduler": Verdict.BAD}


@pytest.mark.parametrize("key", ["switched_off", "slurm_away"])
def test_a_scheduler_that_does_nothing_says_why(key: str) -> None:
    """Thrown by somebody, or without a controller."""
    told = {**(HEALTHY.scheduler or {}), key: "no controller"}
    assert "scheduler" in found(replace(HEALTHY, scheduler=told))


def test_settings_are_read_as_slurm_shows_them() -> None:
    """What is not set is not there; values may have the sign in them."""
    shown = """Configuration data as of 2026-11-16T15:00:00
AuthInfo                = socket=/run/m.sock,cred_expire=5
CliFilterPlugins        = (null)
GresTypes               = gpu,slot

Cgroup Support Configuration:
ConstrainDevices        = no
"""
    assert settings_in(shown) == {
        "AuthInfo": "socket=/run/m.sock,cred_expire=5",
        "GresTypes": "gpu,slot",
        "ConstrainDevices": "no",
    }


def test_without_slurm_and_daemons_it_says_so_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty machine: no traceback, exit code 1, for people and for programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("SLURM_CONF", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    words = ["doctor", f"--run-dir={tmp_path}"]
    told = CliRunner().invoke(main, [*words, "--json"])
    assert told.exit_code == 1
    answer = json.loads(told.stdout)
    assert not answer["healthy"]
    assert {one["check"] for one in answer["findings"]} >= {"slurmctld", "scheduler"}
    for_people = CliRunner().invoke(main, [*words, "--no-color"])
    assert for_people.exit_code == 1
    assert "2 wrong" in for_people.stdout


def test_what_is_mounted_below_dev_shm_is_seen(tmp_path: Path) -> None:
    """And nothing else; a host without /proc/mounts has nothing to tell."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "tmpfs /dev/shm tmpfs rw 0 0\nx /dev/shm/a tmpfs rw 0 0\ny /run tmpfs rw 0 0\n"
    )
    assert facts._below("/dev/shm", mounts) == ("/dev/shm/a",)  # noqa: S108, SLF001 (no file)
    assert facts._below("/dev/shm", tmp_path / "none") == ()  # noqa: S108, SLF001 (the same)


def test_private_folders_of_jobs_are_fine_where_ours_are_not_in_them() -> None:
    """Pages and checkpoints are below /run."""
    assert found(replace(HEALTHY, config=CONTAINED)) == {}


def test_the_clock_is_compared_with_slurmctlds() -> None:
    """By the stamp of its answer; one that is written otherwise is not understood, and no fault."""
    now_s = time.mktime(time.strptime("2026-11-16T15:00:00", "%Y-%m-%dT%H:%M:%S"))
    stamp = "Configuration data as of 2026-11-16T15:00:00\nAuthInfo = (null)\n"
    assert places.clock_off_s(stamp, now_s + 7) == 7.0
    assert places.clock_off_s(stamp.replace("2026-11-16T15:00:00", "16 Nov 15:00"), now_s) is None
    assert places.clock_off_s("", now_s) is None


def test_the_shared_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rights and its filesystem, which is the nearest mount above it."""
    folder, mounts = tmp_path / "durable", tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nhead:/s {tmp_path} nfs4 rw,hard 0 0\nbad\n")
    monkeypatch.setenv(places.DURABLE, str(folder))
    told = places.durable(mounts)
    assert told == Durable(path=str(folder), error="No such file or directory")
    folder.mkdir()
    folder.chmod(0o1777)
    assert places.durable(mounts) == replace(SHARED, path=str(folder), options="rw,hard")
    assert places.filesystem_of("/other", mounts.read_text()) == ("ext4", "rw")
    monkeypatch.setenv(places.DURABLE, str(mounts))
    told = places.durable(mounts)
    assert told
    assert told.error == "is no folder"
    monkeypatch.delenv(places.DURABLE)
    assert places.durable(mounts) is None


def test_the_schedulers_socket_must_be_slurms(tmp_path: Path) -> None:
    """Not there, another user's, or in a folder where anybody may put another: each is told."""
    tmp_path.chmod(0o755)
    me = os.geteuid()
    assert "submit.sock" in places.sockets(tmp_path, CONFIG)
    (tmp_path / "submit.sock").touch()
    assert places.sockets(tmp_path, {"SlurmUser": f"slurm({me})"}) == ""
    assert places.sockets(tmp_path, {"SlurmUser": "root(0)"}) == ""
    assert "slurmctld runs as" in places.sockets(tmp_path, {"SlurmUser": f"slurm({me + 1})"})
    tmp_path.chmod(0o777)
    assert "may write" in places.sockets(tmp_path, {"SlurmUser": f"slurm({me})"})


def test_a_wrapper_is_known_by_its_folder() -> None:
    """Of the build of Slurm it was made for."""
    folder = "/usr/lib/slipstream/select/22.05.8-4+deb12u3:/usr/lib/x86_64-linux-gnu/slurm-wlm"
    assert places.wrapper_of({"PluginDir": folder}) == "22.05.8-4+deb12u3"
    assert places.wrapper_of(CONFIG) == ""


def test_nodes_that_differ_from_the_clusters_mode_are_told() -> None:
    """Held back by a setting is a remark; a node that does not follow is a fault."""
    assert HEALTHY.scheduler is not None
    nodes = {"count": 3, "follow": 3, "held_back": [], "behind": [], "silent": []}
    told = {**HEALTHY.scheduler, "mode": "enforce", "nodes": nodes}
    assert found(replace(HEALTHY, scheduler=told)) == found(HEALTHY)
    held = {**nodes, "held_back": [{"node": "n2", "mode": "observe", "at_most": "observe"}]}
    one = replace(HEALTHY, scheduler={**told, "nodes": {**held, "follow": 2}})
    assert found(one)["mode"] is Verdict.NOTE
    behind = {**held, "behind": [{"node": "n3", "mode": None}], "follow": 1}
    two = replace(HEALTHY, scheduler={**told, "nodes": behind})
    assert found(two)["mode"] is Verdict.BAD
