# SPDX-License-Identifier: Apache-2.0
"""sacct's text: completed jobs with what their steps measured."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from slipstream.slurm_plugin import SlurmParseError
from slipstream.slurm_plugin.parse_sacct import COLUMNS, parse_sacct

pytestmark = pytest.mark.unit

RECORDED = Path(__file__).parents[1] / "fixtures" / "slurm" / "22.05.8" / "sacct.txt"
JOB = {
    "JobID": "12",
    "UID": "1000",
    "Account": "lab",
    "Partition": "batch",
    "State": "COMPLETED",
    "Submit": "1700000000",
    "End": "1700000100",
    "Elapsed": "00:01:30",
    "Timelimit": "UNLIMITED",
    "NNodes": "2",
    "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,gres/slot=1,mem=8G,node=2",
    "MaxRSS": "",
    "TRESUsageInMax": "",
    "JobName": "train",
}


def text(*rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> str:
    """What sacct prints."""
    lines = ["|".join({**JOB, **row}.get(name, "") for name in columns) for row in rows]
    return "\n".join(["|".join(columns), *lines]) + "\n"


def test_a_recorded_answer_is_read() -> None:
    """Running and failed jobs are left out, and so are steps; a name may hold the delimiter."""
    jobs = {job.ref: job for job in parse_sacct(RECORDED.read_text())}
    assert list(jobs) == ["1", "2_0", "2_1", "3", "5"]
    assert [job.gpus for job in jobs.values()] == [2, 1, 1, 0, 2]
    assert (jobs["2_1"].name, jobs["2_1"].account, jobs["2_1"].uid) == ("odd|name", "research", 0)
    assert (jobs["5"].nodes, jobs["5"].cpus, jobs["5"].memory_mib) == (2, 2, 512)
    assert (jobs["1"].run_s, jobs["1"].time_limit_s) == (2, 300)
    waited_s = jobs["1"].ended_at_s - jobs["1"].submitted_at_s
    assert waited_s == 2
    assert datetime.fromtimestamp(jobs["1"].ended_at_s).astimezone().year == 2026


def test_what_steps_measured_belongs_to_their_job() -> None:
    """The most of any."""
    steps = (
        {"JobID": "12.batch", "MaxRSS": "1500K", "TRESUsageInMax": "cpu=1,gres/gpumem=2150M"},
        {"JobID": "12.0", "MaxRSS": "2.50G", "TRESUsageInMax": "gres/gpumem=100M,gres/gpuutil=9"},
        {"JobID": "12.extern", "MaxRSS": "0"},
        {"JobID": "99.0", "MaxRSS": "9G"},
    )
    (job,) = parse_sacct(text({}, *steps))
    assert (job.used_memory_mib, job.gpu_memory_mib) == (2560, 2150)
    assert (job.gpus, job.slots, job.time_limit_s, job.run_s) == (4, 1, None, 90)


def test_more_columns_do_no_harm() -> None:
    """As long as the name comes last."""
    (job,) = parse_sacct(text({"JobName": "a|b"}, columns=("ExitCode", *COLUMNS)))
    assert job.name == "a|b"


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("", "are missing"),
        ("JobID|State\n", "'UID'.* are missing"),
        (text({}, columns=("JobName", *COLUMNS[:-1])), "JobName has to be the last column"),
        ("|".join(COLUMNS) + "\n1|2\n", "14 columns are expected"),
        (text({"UID": "me"}), "UID of sacct 'me'"),
        (text({"End": "Unknown"}), "End of sacct 'Unknown'"),
        (text({"Elapsed": "long"}), "elapsed time 'long'"),
    ],
)
def test_what_is_not_understood_is_quoted(told: str, sentence: str) -> None:
    """An error that says where, never half a list."""
    with pytest.raises(SlurmParseError, match=sentence):
        parse_sacct(told)
