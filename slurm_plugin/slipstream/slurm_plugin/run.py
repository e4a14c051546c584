# SPDX-License-Identifier: Apache-2.0
"""Running Slurm's commands: argv in, text out, failures as `SlurmError`. Nothing is parsed here."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from slipstream.slurm_plugin.classify import classify
from slipstream.slurm_plugin.errors import Kind, SlurmError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SET_FOR_COMMANDS: Final = ("SLURM_", "SQUEUE_", "SINFO_", "SBATCH_", "SCANCEL_", "SCONTROL_")
_MOST_SAID_CHARACTERS: Final = 2_000
_KEPT: Final = ("SLURM_CONF", "SLURM_CONF_SERVER")


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran to its end, however it ended."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """Slurm's text: its errors if there are any."""
        return (self.stderr.strip() or self.stdout.strip())[:_MOST_SAID_CHARACTERS]

    def error(self, kind: Kind | None = None) -> SlurmError:
        """This outcome as the exception it is."""
        kind = kind or classify(self.said)
        return SlurmError(self.argv, self.said, kind, self.exit_code)


class CommandRunner(Protocol):
    """What runs a command. Raises `SlurmError` if it did not run to its end, and only then."""

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> Completed:
        """Run it and wait for it."""
        ...


@dataclass(frozen=True, slots=True)
class SubprocessRunner:
    """Runs the installed commands.

    Args:
        environment: the whole environment of the commands: see `command_environment`.
        prefix: what goes before each argv, such as `ip netns exec …` or `sudo -u slurm`.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: command_environment(os.environ))
    prefix: tuple[str, ...] = ()

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> Completed:
        """Run it and wait for it; after `timeout_s` it is killed."""
        try:
            done = subprocess.run(
                [*self.prefix, *argv],
                env=self.environment,
                input=stdin.encode(),
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = f"no answer within {timeout_s:g} s; whether it was done is not known"
            raise SlurmError(argv, said, Kind.TIMED_OUT) from error
        except OSError as error:
            raise SlurmError(argv, str(error), Kind.NO_COMMAND) from error
        return Completed(tuple(argv), done.returncode, _text(done.stdout), _text(done.stderr))


def command_environment(base: Mapping[str, str], slurm_conf: str | None = None) -> dict[str, str]:
    """`base` without what would change the commands' answers, and with what keeps them whole.

    Variables such as SQUEUE_STATES or SLURM_CLUSTERS act like options typed by somebody else. The
    adapter's own process may run inside a job, which sets many of them.
    """
    kept = {
        name: value
        for name, value in base.items()
        if name in _KEPT or not name.startswith(_SET_FOR_COMMANDS)
    }
    # Without this, task lists of large arrays end in "..." after 64 characters.
    kept["SLURM_BITSTR_LEN"] = "0"
    kept["LC_ALL"] = "C.UTF-8"
    if slurm_conf is not None:
        kept["SLURM_CONF"] = slurm_conf
    return kept


def _text(output: bytes) -> str:
    """Users choose bytes for names and comments: those that are no UTF-8 are shown as \\xff."""
    return output.decode("utf-8", errors="backslashreplace")
