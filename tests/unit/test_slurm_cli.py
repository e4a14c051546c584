# SPDX-License-Identifier: Apache-2.0
"""The CLI backend over recorded answers: what a real cluster says only when it is in trouble."""

from __future__ import annotations

import pytest

from fakes import recorded
from fakes.scripted import Answer, Scripted
from slipstream.slurm_plugin import (
    CliSlurm,
    Kind,
    SlurmError,
    SlurmParseError,
    Submission,
    TaskId,
    Version,
)

pytestmark = pytest.mark.unit

UP: Answer = (0, "Slurmctld(primary) at testhost is UP\n", "")
DOWN: Answer = (1, "Slurmctld(primary) at testhost is DOWN\n***\n", "")


def slurm(**answers: Answer) -> CliSlurm:
    """A backend that gets these answers; `_` stands for a space."""
    return CliSlurm(Scripted({key.replace("_", " "): answer for key, answer in answers.items()}))


def refused(version: str, name: str) -> Answer:
    """A recorded refusal."""
    refusal = recorded.refusals(version)[name]
    return (refusal.exit_code, refusal.stdout, refusal.stderr)


def error_of(act: object) -> SlurmError:
    """The error a call ends with."""
    assert callable(act)
    with pytest.raises(SlurmError) as raised:
        act()
    return raised.value


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_an_unknown_job_and_nobody_there_are_told_apart(version: str) -> None:
    """The same text from Slurm: a ping decides."""
    for ping, kind in ((UP, Kind.UNKNOWN_JOB), (DOWN, Kind.UNREACHABLE)):
        backend = slurm(
            scontrol_suspend=refused(version, "suspend-unknown-job"), scontrol_ping=ping
        )
        assert error_of(lambda b=backend: b.suspend(999_999)).kind is kind


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_a_queue_that_cannot_be_asked_for_is_not_empty(version: str) -> None:
    """Whether the command fails, or says so inside an answer that looks well."""
    backend = slurm(squeue=refused(version, "controller-down-squeue"), scontrol_ping=DOWN)
    error = error_of(backend.jobs)
    assert error.kind is Kind.UNREACHABLE
    assert error.command[0] == "squeue"


def test_an_error_inside_an_answer_counts_while_slurmctld_is_up() -> None:
    """It is not understood, so it is no queue either."""
    backend = slurm(squeue=refused("22.05.8", "controller-down-squeue"), scontrol_ping=UP)
    assert error_of(backend.jobs).kind is Kind.OTHER


def test_a_topology_that_cannot_be_asked_for_is_not_flat() -> None:
    """Its exit code is 0 all the same."""
    away = (0, "", "slurm_load_topo error: Unable to contact slurm controller (connect failure)\n")
    version = (0, "slurm-wlm 24.11.5\n", "")
    backend = slurm(**{"scontrol_--version": version, "scontrol_show_topology": away})
    assert error_of(backend.topology).kind is Kind.UNREACHABLE


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_a_cluster_without_topology_is_one_rack(version: str) -> None:
    """Of all its nodes; 22.05 even complains."""
    nodes = (0, recorded.text(version, recorded.nodes_file(version)), "")
    backend = slurm(
        **{
            "scontrol_--version": (0, recorded.text(version, "scontrol-version.txt"), ""),
            "scontrol_show_topology": refused(version, "no-topology-flat.txt"),
            "scontrol_show_topoconf": (0, "- topology: default\n  cluster_default: false\n", ""),
            "sinfo": nodes,
            "scontrol_--all_show_nodes": nodes,
        }
    )
    topology = backend.topology()
    assert [group.nodes for group in topology.racks] == [("n1", "n2", "n3", "n4")]
    assert topology.racks == topology.domains


def test_of_several_topologies_the_clusters_own_is_asked_for() -> None:
    """By its name, from 25.05 on."""
    version = "26.05.5"
    commands = Scripted(
        {
            "scontrol --version": (0, recorded.text(version, "scontrol-version.txt"), ""),
            "scontrol show topoconf": (0, recorded.text(version, "topoconf-yaml.txt"), ""),
            "scontrol show topology racks": (
                0,
                recorded.text(version, "topology-yaml-racks.txt"),
                "",
            ),
        }
    )
    assert [rack.name for rack in CliSlurm(commands).topology().racks] == ["s1", "s2"]


def test_the_version_is_asked_for_once() -> None:
    """It cannot change under a running command."""
    commands = Scripted({"scontrol --version": (0, "slurm 24.11.5\n", "")})
    backend = CliSlurm(commands)
    assert backend.version() == backend.version() == Version(24, 11, 5)
    assert commands.asked == ["scontrol --version"]


def test_an_answer_we_cannot_read_names_its_command() -> None:
    """And quotes the answer."""
    with pytest.raises(SlurmParseError, match=r"^squeue --json .*banana"):
        slurm(squeue=(0, "banana", "")).jobs()
    with pytest.raises(SlurmParseError, match=r"^sbatch .*banana"):
        slurm(sbatch=(0, "banana", "")).submit(Submission(script="#!/bin/sh\n"))


def test_cancelling_what_has_ended_is_done() -> None:
    """Scancel complains in words only; of an unknown job as well, and that is an error."""
    ended = "scancel: error: Kill job error on job id 7: Job/step already completing or completed\n"
    slurm(scancel=(0, "", ended)).cancel(7)
    slurm(scancel=(0, "", "scancel: Terminating job 7\n")).cancel(7)
    unknown = "scancel: error: Kill job error on job id 7_1: Invalid job id specified\n"
    backend = slurm(scancel=(0, "", unknown))
    assert error_of(lambda: backend.cancel(TaskId(7, 1))).kind is Kind.UNKNOWN_JOB
