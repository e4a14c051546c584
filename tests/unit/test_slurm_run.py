# SPDX-License-Identifier: Apache-2.0
"""Commands are run, waited for and given up; nothing of the caller's session leaks into them."""

from __future__ import annotations

import time

import pytest

from slipstream.slurm_plugin import Kind, SlurmError
from slipstream.slurm_plugin.run import Completed, SubprocessRunner, command_environment

pytestmark = pytest.mark.unit


def shell(text: str, stdin: str = "", timeout_s: float = 10.0) -> Completed:
    """Run a line of shell the way commands are run."""
    return SubprocessRunner().run(["sh", "-c", text], timeout_s=timeout_s, stdin=stdin)


def test_a_command_leaves_its_texts_and_its_code() -> None:
    """A failing one too: what to make of it is for others to say."""
    done = shell("cat; echo oops >&2; exit 3", stdin="in")
    assert done == Completed(("sh", "-c", done.argv[2]), 3, "in", "oops\n")
    assert done.said == "oops"
    assert shell("echo out").said == "out"


def test_bytes_that_are_no_text_are_shown() -> None:
    """A user may name a job anything."""
    assert shell(r"printf 'a\377b'").stdout == "a\\xffb"


def test_a_command_that_does_not_end_is_given_up() -> None:
    """Soon, and with the warning that it may have worked."""
    began_s = time.monotonic()
    with pytest.raises(SlurmError) as raised:
        shell("sleep 30", timeout_s=0.2)
    assert time.monotonic() - began_s < 5
    assert raised.value.kind is Kind.TIMED_OUT
    assert "not known" in raised.value.text


def test_a_command_that_is_not_there_is_told() -> None:
    """Slurm is not installed, or not on the PATH."""
    with pytest.raises(SlurmError) as raised:
        SubprocessRunner().run(["no-such-command-here"], timeout_s=1)
    assert raised.value.kind is Kind.NO_COMMAND
    assert "no-such-command-here" in str(raised.value)


def test_a_prefix_goes_before_every_command() -> None:
    """To enter a network namespace, or to be somebody else; errors name the command itself."""
    done = SubprocessRunner(prefix=("env", "WHO=me")).run(["sh", "-c", "echo $WHO"], timeout_s=5)
    assert (done.stdout, done.argv[0]) == ("me\n", "sh")


def test_other_peoples_options_are_left_behind() -> None:
    """Slurm's commands take options from variables, and jobs are full of them."""
    ours = command_environment(
        {
            "PATH": "/bin",
            "HOME": "/root",
            "SLURM_CONF": "/a/slurm.conf",
            "SLURM_CLUSTERS": "other",
            "SLURM_JOB_ID": "7",
            "SQUEUE_STATES": "RUNNING",
            "SBATCH_PARTITION": "night",
            "LC_ALL": "de_DE",
        }
    )
    assert ours == {
        "PATH": "/bin",
        "HOME": "/root",
        "SLURM_CONF": "/a/slurm.conf",
        "SLURM_BITSTR_LEN": "0",
        "LC_ALL": "C.UTF-8",
    }
    assert command_environment({}, "/b/slurm.conf")["SLURM_CONF"] == "/b/slurm.conf"
