# SPDX-License-Identifier: Apache-2.0
"""States and flags: closed lists."""

from __future__ import annotations

import pytest

from slipstream.slurm_plugin import JobFlag, JobState, NodeFlag, NodeState, SlurmParseError
from slipstream.slurm_plugin.states import read_job_state, read_node_state

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("words", "state", "flags"),
    [
        (["RUNNING"], JobState.RUNNING, JobFlag.NONE),
        (["CANCELLED", "COMPLETING"], JobState.CANCELLED, JobFlag.COMPLETING),
        (
            ["PENDING", "REQUEUED", "COMPLETING"],
            JobState.PENDING,
            JobFlag.REQUEUED | JobFlag.COMPLETING,
        ),
        (["COMPLETING"], JobState.UNTOLD, JobFlag.COMPLETING),
        (["CONFIGURING"], JobState.RUNNING, JobFlag.CONFIGURING),
        (["REQUEUE_HOLD"], JobState.PENDING, JobFlag.REQUEUE_HOLD),
        (["SPECIAL_EXIT"], JobState.PENDING, JobFlag.SPECIAL_EXIT),
    ],
)
def test_a_jobs_words_are_a_state_and_flags(
    words: list[str], state: JobState, flags: JobFlag
) -> None:
    """A list from 23.02 on; before, a single word behind which the state may hide."""
    assert read_job_state(words) == (state, flags)


def test_a_nodes_words_are_a_state_and_flags() -> None:
    """22.05 writes the state in lower case."""
    assert read_node_state(["mixed", "DRAIN"]) == (NodeState.MIXED, NodeFlag.DRAIN)
    assert read_node_state(["IDLE"]) == (NodeState.IDLE, NodeFlag.NONE)


@pytest.mark.parametrize("words", [["FLYING"], ["UNTOLD"], [], ["RUNNING", "PENDING"]])
def test_a_state_we_do_not_know_is_quoted(words: list[str]) -> None:
    """Our own word for an untold state is not Slurm's; and a job has one state."""
    with pytest.raises(SlurmParseError, match="job state"):
        read_job_state(words)


def test_the_words_we_know_are_listed() -> None:
    """So that whoever reads the error sees what is missing."""
    with pytest.raises(SlurmParseError, match=r"'FLYING' not understood: one of .*PENDING"):
        read_job_state(["FLYING"])


def test_ended_means_neither_waiting_nor_running() -> None:
    """A job that completes may yet come back, so an untold state has not ended."""
    alive = {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNTOLD}
    assert {state for state in JobState if not state.ended} == alive
