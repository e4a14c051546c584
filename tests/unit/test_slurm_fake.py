# SPDX-License-Identifier: Apache-2.0
"""The fake Slurm raises where it does not know, and writes what Slurm 22.05.8 writes."""

from __future__ import annotations

import json
from signal import SIGUSR1

import pytest

from fakes import recorded
from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import VERSION, FakeCommands, UnknownCommandError
from slipstream.slurm_plugin import CliSlurm, Kind, SignalTo, SlurmError, Submission

pytestmark = pytest.mark.unit


@pytest.fixture
def commands() -> FakeCommands:
    """A cluster of one node with a job in its queue."""
    fake = FakeCommands(FakeCluster([FakeNode("n1", 8, {"gpu": 2})], {"rack1": ("n1",)}))
    CliSlurm(fake).submit(Submission(script="#!/bin/sh\n"))
    return fake


@pytest.mark.parametrize(
    "argv",
    [
        "sacct --json",
        "scontrol",
        "scontrol reconfigure",
        "scontrol suspend",
        "scontrol show jobs",
        "scontrol update NodeName=n1 State=DRAIN",
        "scontrol update JobId=1 Nice=5",
        "squeue",
        "squeue --json",
        "sinfo --json --all --long",
        "scancel 1",
        "scancel --signal=USR1 --hurry 1",
        "sbatch --parsable --exclusive",
    ],
)
def test_an_unknown_command_or_option_raises(commands: FakeCommands, argv: str) -> None:
    """It never guesses: an answer it made up would be believed."""
    with pytest.raises(UnknownCommandError, match="does not know"):
        commands.run(argv.split(), timeout_s=1, stdin="#!/bin/sh\n")


@pytest.mark.parametrize(
    ("argv", "key", "recording"),
    [
        ("squeue --json --all --states=all", "jobs", "squeue-all.json"),
        ("sinfo --json --all", "nodes", "sinfo.json"),
    ],
)
def test_its_records_have_only_fields_slurm_has(
    commands: FakeCommands, argv: str, key: str, recording: str
) -> None:
    """Of the same types as in the recording, so that no parser can lean on an invention."""
    commands.cluster.advance(1)
    (ours,) = json.loads(commands.run(argv.split(), timeout_s=1).stdout)[key]
    real = json.loads(recorded.text(VERSION, recording))[key]
    for name, value in ours.items():
        assert any(type(record[name]) is type(value) for record in real), name


def test_a_signal_to_a_waiting_job_hangs_as_scancel_does(commands: FakeCommands) -> None:
    """Until the adapter's own patience ends."""
    with pytest.raises(SlurmError) as raised:
        CliSlurm(commands, timeout_s=5).signal(1, SIGUSR1, SignalTo.BATCH)
    assert raised.value.kind is Kind.TIMED_OUT
