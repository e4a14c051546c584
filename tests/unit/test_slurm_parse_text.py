# SPDX-License-Identifier: Apache-2.0
"""Answers that are no JSON, and JSON that is no answer."""

from __future__ import annotations

import pytest

from fakes import recorded
from slipstream.slurm_plugin import SlurmParseError
from slipstream.slurm_plugin.parse_text import (
    parse_controller_version,
    parse_longest_s,
    parse_pids,
    parse_ping,
    parse_submitted,
)
from slipstream.slurm_plugin.values import document_version, read_document, reported_errors
from slipstream.slurm_plugin.version import parse_version

pytestmark = pytest.mark.unit

every_version = pytest.mark.parametrize("version", recorded.VERSIONS)


@every_version
def test_versions_agree(version: str) -> None:
    """The command's, the controller's and that of an answer in JSON."""
    command = parse_version(recorded.text(version, "scontrol-version.txt"))
    controller = parse_controller_version(recorded.text(version, "config.txt"))
    answer = document_version(recorded.document(version, "squeue-empty.json"))
    assert command == controller == answer == parse_version(version)


@every_version
def test_a_ping_is_answered(version: str) -> None:
    """Up, and down."""
    assert parse_ping(recorded.text(version, "ping.txt"))
    assert not parse_ping(recorded.refusals(version)["controller-down-ping"].stdout)


def test_a_backup_that_is_up_is_enough() -> None:
    """Somebody answers."""
    assert parse_ping("Slurmctld(primary) at a is DOWN\nSlurmctld(backup1) at b is UP\n")


@every_version
def test_processes_are_listed(version: str) -> None:
    """With their step, and their rank where they are a task."""
    found = parse_pids(recorded.text(version, "listpids.txt"))
    assert {process.step for process in found} == {"0", "batch"}
    assert {process.task for process in found} == {0, None}
    assert all(process.pid > 0 for process in found)


def test_a_step_without_a_process_is_left_out() -> None:
    """Slurm writes -1 for it."""
    table = "PID      JOBID    STEPID   LOCALID GLOBALID\n-1       7        extern   -       -\n"
    assert parse_pids(table) == ()


@every_version
def test_a_partitions_longest_time_is_read(version: str) -> None:
    """One without a limit, one of half an hour; what is none is quoted."""
    main, short = recorded.text(version, "partition.txt").splitlines()
    assert (parse_longest_s(main), parse_longest_s(short)) == (None, 1800)
    with pytest.raises(SlurmParseError, match="PartitionName=x"):
        parse_longest_s("PartitionName=x")


def test_a_submitted_jobs_number_is_read() -> None:
    """Also with the name of a cluster behind it."""
    assert parse_submitted("12\n") == 12
    assert parse_submitted("12;green\n") == 12


@pytest.mark.parametrize(
    "parse", [parse_submitted, parse_ping, parse_pids, parse_controller_version]
)
@pytest.mark.parametrize("text", ["", "banana", "PID\nx y z"])
def test_another_answer_is_quoted(parse: object, text: str) -> None:
    """Never taken for nothing."""
    assert callable(parse)
    with pytest.raises(SlurmParseError):
        parse(text)


@pytest.mark.parametrize("text", ["", "[]", "7", "{", '{"jobs":' + "[" * 100_000])
def test_what_is_no_json_object_is_quoted(text: str) -> None:
    """Also what is nested too deep to be true."""
    with pytest.raises(SlurmParseError, match=r"squeue .* not understood"):
        read_document(text, "squeue")


def test_an_error_inside_an_answer_is_found() -> None:
    """22.05 ends with exit code 0 and an empty queue while slurmctld is away."""
    refusal = recorded.refusals("22.05.8")["controller-down-squeue"]
    assert refusal.exit_code == 0
    said = reported_errors(read_document(refusal.stdout, "squeue"))
    assert said == "slurm_load_jobs: Failed while looking for jobs: Unspecified error"
    assert reported_errors(recorded.document("22.05.8", "squeue-empty.json")) == ""
    assert reported_errors(read_document('{"errors": [{}]}', "squeue")) == "unspecified error"
