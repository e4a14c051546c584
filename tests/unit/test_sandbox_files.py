# SPDX-License-Identifier: Apache-2.0
"""What a sandbox writes for Slurm to read, and where."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slipstream.sandbox import SandboxError, Shape, config, network
from slipstream.sandbox.environment import slurm_environment
from slipstream.sandbox.layout import Layout
from slipstream.sandbox.plan import Plan, load_plan

pytestmark = pytest.mark.unit

LAYOUT = Layout(Path("/srv/boxes"), "test")


def planned(
    *, nodes: int = 4, stock: bool = False, accounting: bool = False, netns: bool = False
) -> Plan:
    """A plan that has its ports."""
    shape = Shape(nodes=nodes, racks=2)
    plan = Plan(shape=shape, stock=stock, accounting=accounting, netns=netns)
    return plan.settled(tuple(range(20_000, 20_003 + nodes)), "127.0.1.1")


def settings(text: str) -> dict[str, str]:
    """The Key=Value lines of a configuration file."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_slurm_is_configured_as_the_project_needs_it() -> None:
    """Output is appended, credentials expire in 5 s, nothing starts inside a submit."""
    conf = settings(config.slurm_conf(planned(), LAYOUT, hostname="box"))
    assert conf["JobFileAppend"] == "1"
    assert conf["AuthInfo"] == "socket=/srv/boxes/test/run/munge.socket,cred_expire=5"
    assert conf["GresTypes"] == "gpu,slot"
    assert "defer" in conf["SchedulerParameters"].split(",")


def test_a_stock_sandbox_has_nothing_of_ours() -> None:
    """Neither slots nor our scheduling switch are in plain Slurm's files."""
    plan = planned(stock=True)
    text = config.slurm_conf(plan, LAYOUT, hostname="box") + config.gres_conf(plan, LAYOUT)
    assert "slot" not in text
    assert "defer" not in text


def test_slurm_listens_on_loopback_where_the_host_name_allows_it() -> None:
    """With a host name on loopback the daemons bind that address, else any."""
    plan = planned()
    conf = settings(config.slurm_conf(plan, LAYOUT, hostname="box"))
    assert conf["CommunicationParameters"] == "NoCtldInAddrAny,NoInAddrAny"
    assert conf["SlurmctldHost"] == "box(127.0.1.1)"
    elsewhere = dataclasses.replace(plan, loopback="")
    conf = settings(config.slurm_conf(elsewhere, LAYOUT, hostname="box"))
    assert "CommunicationParameters" not in conf
    assert conf["SlurmctldHost"] == "box(127.0.0.1)"


def test_every_gpu_has_its_own_device_file() -> None:
    """gres.conf names the node's own device nodes, and counts slots."""
    lines = config.gres_conf(planned(nodes=2), LAYOUT).splitlines()
    assert "NodeName=n2 Name=gpu File=/srv/boxes/test/dev/n2/nvidia[0-3]" in lines
    assert "NodeName=n2 Name=slot Count=12 Flags=CountOnly" in lines


@pytest.mark.parametrize(
    ("release", "word"), [((22, 5), "Automount"), ((23, 11), "disabled"), ((26, 5), "disabled")]
)
def test_no_slurmd_claims_the_cgroups_of_the_machine(release: tuple[int, int], word: str) -> None:
    """Newer ones want to be told so in another way, and refuse the old one."""
    assert word in config.cgroup_conf(release)


def test_racks_hang_below_one_domain() -> None:
    """The topology is a tree of two levels."""
    assert config.topology_conf(planned(nodes=5)).splitlines() == [
        "SwitchName=rack1 Nodes=n[1-2]",
        "SwitchName=rack2 Nodes=n[3-5]",
        "SwitchName=domain Switches=rack[1-2]",
    ]


def test_owners_that_hold_all_cpus_leave_none() -> None:
    """GPUs times CPUs per GPU is all CPUs of the node."""
    shape = Shape(gpus_per_node=4, cpus_per_node=32, owners_hold_all_cpus=True)
    plan = Plan(shape=shape, ports=tuple(range(7)))
    assert "DefCpuPerGPU=8" in config.slurm_conf(plan, LAYOUT, hostname="box")


def test_a_plan_survives_being_stored(tmp_path: Path) -> None:
    """sandbox.json brings back exactly what was asked for."""
    plan = planned(accounting=True, netns=True)
    plan.store(tmp_path / "sandbox.json")
    assert load_plan(tmp_path / "sandbox.json") == plan


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"shape": {"nodes": "x"}}', '{"shape": 3}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    """A torn sandbox.json gives a sentence with its path, not a traceback."""
    path = tmp_path / "sandbox.json"
    path.write_text(text)
    with pytest.raises(SandboxError, match=r"sandbox\.json"):
        load_plan(path)


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "1st", "x" * 32, "a b"])
def test_names_that_could_leave_the_home_are_refused(name: str) -> None:
    """A name is a plain word, never a path."""
    with pytest.raises(SandboxError, match="cannot be a sandbox's name"):
        Layout(Path("/srv"), name)


def test_a_home_too_deep_for_unix_sockets_is_refused_in_time() -> None:
    """Better a sentence now than a munged that dies with 'name too long'."""
    with pytest.raises(SandboxError, match="choose a shorter --home"):
        Layout(Path("/" + "deep/" * 20), "test")


def test_a_foreign_slurm_does_not_leak_in() -> None:
    """Started inside a job of a real cluster, the sandbox sees nothing of that job."""
    found = slurm_environment(
        LAYOUT, {"SLURM_JOB_ID": "7", "SBATCH_ACCOUNT": "x", "SLURM_CONF": "/etc/x", "HOME": "/h"}
    )
    assert found["SLURM_CONF"] == "/srv/boxes/test/etc/slurm.conf"
    assert found["HOME"] == "/h"
    assert not {"SLURM_JOB_ID", "SBATCH_ACCOUNT"} & found.keys()


def test_every_node_has_an_address_of_its_own_in_its_namespace() -> None:
    """64 nodes and the head: 65 addresses in the sandbox's own network."""
    plan = planned(nodes=64, netns=True)
    addresses = {plan.node_address(node) for node in plan.shape.node_names} | {plan.head_address}
    assert len(addresses) == 65
    assert all(address.startswith("10.213.") for address in addresses)


def test_each_rack_gets_a_limited_uplink_both_ways() -> None:
    """Two racks, two ends each, all at the rate asked for."""
    plan = dataclasses.replace(planned(netns=True), shape=Shape(uplink_mbit=200))
    limits = network.uplink_limits(plan)
    assert len(limits) == 4
    assert all("rate 200mbit" in line for line in limits)
