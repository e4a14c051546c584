# SPDX-License-Identifier: Apache-2.0
"""The pyslurm backend, as far as it can be told without pyslurm: who is asked, and with what."""

from __future__ import annotations

from importlib import metadata

import pytest

from fakes.pyslurm_module import JobSubmitDescription, Module
from fakes.scripted import Scripted
from slipstream.slurm_plugin import (
    Backend,
    CliSlurm,
    Gres,
    JobUpdate,
    Kind,
    SlurmError,
    TaskId,
    Version,
    connect,
)
from slipstream.slurm_plugin.pyslurm_backend import (
    PyslurmSlurm,
    Unavailable,
    description,
    find_pyslurm,
)

pytestmark = pytest.mark.unit

DONE = (0, "", "")
CONFIG = (0, "SLURM_VERSION           = 22.05.8\n", "")


@pytest.fixture
def pyslurm() -> Module:
    """The stand-in."""
    return Module()


@pytest.fixture
def commands() -> Scripted:
    """Commands that always work."""
    version = (0, "slurm 25.11.2\n", "")
    return Scripted({"scontrol": DONE, "scancel": DONE, "scontrol --version": version})


@pytest.fixture
def slurm(pyslurm: Module, commands: Scripted) -> PyslurmSlurm:
    """The backend over both."""
    return PyslurmSlurm(pyslurm, commands)


def test_a_plain_job_is_changed_without_a_command(
    slurm: PyslurmSlurm, pyslurm: Module, commands: Scripted
) -> None:
    """Every change of a single job, one call each."""
    slurm.suspend(7)
    slurm.requeue(7)
    slurm.requeue_hold(7)
    slurm.hold(7)
    slurm.release(7)
    slurm.update(7, JobUpdate(time_limit_s=61, required_nodes=("n1", "n2"), start_at_s="now"))
    assert pyslurm.done == [
        ("suspend", 7),
        ("requeue", 7, False),
        ("requeue", 7, True),
        ("hold", 7, None),
        ("release", 7),
        (
            "modify",
            7,
            JobSubmitDescription(required_nodes=["n1", "n2"], begin_time="now", time_limit=2),
        ),
    ]
    assert commands.asked == []


def test_arrays_and_tasks_go_through_the_commands(
    slurm: PyslurmSlurm, pyslurm: Module, commands: Scripted
) -> None:
    """Left to pyslurm, only one record of them would change."""
    slurm.suspend(TaskId(12, 3))
    slurm.hold(12)
    slurm.update(12, JobUpdate(comment="x"))
    assert pyslurm.done == []
    assert commands.asked == [
        "scontrol suspend 12_3",
        "scontrol hold 12",
        "scontrol --version",
        "scontrol update JobId=12 Comment=x",
    ]


@pytest.mark.parametrize(
    "change",
    [
        JobUpdate(comment=""),
        JobUpdate(required_nodes=()),
        JobUpdate(gres_per_node=(Gres("gpu"),)),
        JobUpdate(node_count=2, priority=5),
        JobUpdate(start_at_s=0),
    ],
)
def test_what_pyslurm_cannot_say_goes_through_the_commands(change: JobUpdate) -> None:
    """Emptying, sizes and GRES."""
    assert description(change) is None


def test_a_priority_of_zero_can_be_said() -> None:
    """It is a value, not the lack of one."""
    assert description(JobUpdate(priority=0, admin_comment="x")) == {
        "priority": 0,
        "admin_comment": "x",
    }


def test_its_errors_are_ours(slurm: PyslurmSlurm) -> None:
    """With Slurm's text and a kind."""
    with pytest.raises(SlurmError) as unknown:
        slurm.suspend(999)
    assert unknown.value.kind is Kind.UNKNOWN_JOB
    with pytest.raises(SlurmError) as running:
        slurm.resume(7)
    assert running.value.kind is Kind.WRONG_STATE
    assert "Job(7).unsuspend" in str(running.value)


def test_it_is_not_imported_unless_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it reads slurm.conf, and a broken one would end the process."""
    monkeypatch.setattr(metadata, "version", lambda _name: "25.11.2")
    found = find_pyslurm(Version(22, 5, 8))
    assert found == Unavailable("pyslurm 25.11.2 is not for the Slurm that runs, 22.05.8")
    fits = find_pyslurm(Version(25, 11, 0))
    assert isinstance(fits, Unavailable)
    assert fits.reason.startswith("pyslurm 25.11.2 cannot be imported")


@pytest.mark.skipif(
    bool({"pyslurm"} & set(metadata.packages_distributions())), reason="pyslurm is installed"
)
def test_without_pyslurm_the_commands_are_used() -> None:
    """Chosen at once, or because nothing else is there, or not at all."""
    commands = Scripted({"scontrol show config": CONFIG})
    assert connect(runner=commands).backend is Backend.CLI
    assert commands.asked == []
    auto = connect(Backend.AUTO, commands)
    assert (auto.backend, auto.reason) == (Backend.CLI, "pyslurm is not installed")
    assert type(auto.slurm) is CliSlurm
    with pytest.raises(SlurmError, match="pyslurm is not installed"):
        connect(Backend.PYSLURM, commands)


def test_what_runs_must_be_known() -> None:
    """It speaks to slurmctld, so it is the version of slurmctld that counts."""
    away = (1, "", "slurm_load_ctl_conf error: Unable to contact slurm controller\n")
    connection = connect(Backend.AUTO, Scripted({"scontrol show config": away}))
    assert connection.backend is Backend.CLI
    assert "which Slurm runs is not known" in connection.reason
