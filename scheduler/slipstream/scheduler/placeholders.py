# SPDX-License-Identifier: Apache-2.0
"""The small job that holds GPUs for a guest which became an owner: what it looks like. Pure.

It is known by its name and its user, which nobody else can have both of; its node knows it by the
same. It ends by itself when the guest is not on its node any more, whoever of ours is dead: it asks
Slurm now and then, and holds on while Slurm does not answer.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin.gres import Gres
from slipstream.slurm_plugin.requests import Submission

if TYPE_CHECKING:
    from slipstream.core.commands import Upgrade
    from slipstream.slurm_plugin.records import Job

NAME: Final = "slipstream-owner-"
_LEAST_S: Final = 60
_LATER_S: Final = 120
"""It should outlive its guest: who is left without a placeholder is a guest again."""
_SCRIPT: Final = """#!/bin/sh
# Holds GPUs for job $1, which started as a guest on $2: see docs/scheduler.md of Slipstream.
pause=1
while :; do
    if told=$(squeue --noheader --all --states=running,suspended --jobs="$1" --format=%N 2>&1); then
        [ "$told" = "$2" ] || exit 0
    else
        case $told in *"Invalid job id"*) exit 0 ;; esac
    fi
    sleep $pause &
    wait $!
    [ $pause -ge 20 ] || pause=$((2 * pause))
done
"""


def holds_for(job: Job) -> str:
    """The number of the guest that a job holds GPUs for; empty if it is no placeholder of ours."""
    number = job.name.removeprefix(NAME)
    ours = job.uid == os.geteuid() and number != job.name and number.isdigit()
    return number if ours else ""


def submission(command: Upgrade, now_s: float, longest_s: int | None) -> Submission:
    """The job, in the guest's own place in Slurm's order; `longest_s` is all its partition allows.

    Without a limit it would get the partition's default.
    """
    priority = (f"--priority={command.priority}",) if command.priority else ()
    limit_s = longest_s
    if command.ends_at_s is not None:
        wanted_s = max(_LEAST_S, int(command.ends_at_s - now_s) + _LATER_S)
        limit_s = wanted_s if longest_s is None else min(wanted_s, longest_s)
    return Submission(
        script=_SCRIPT,
        arguments=(command.number, command.node),
        name=NAME + command.number,
        partition=command.partition or None,
        nodes=1,
        tasks=1,
        memory_mib_per_node=64,
        gres_per_node=(Gres("gpu", count=command.gpus),),
        required_nodes=(command.node,),
        time_limit_s=limit_s,
        requeueable=False,
        work_dir="/",
        stdout_path="/dev/null",
        options=(*priority, *(("--time=unlimited",) if limit_s is None else ())),
    )
