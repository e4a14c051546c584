# SPDX-License-Identifier: Apache-2.0
"""Slurm, typed: one protocol over its commands or over pyslurm, and one poller for a daemon.

Render (pure), run, parse (pure) are apart. Slurm's text becomes frozen data at this edge, once.
See docs/adapter.md.
"""

from slipstream.slurm_plugin.cli import CliSlurm
from slipstream.slurm_plugin.connect import Backend, Connection, connect
from slipstream.slurm_plugin.errors import Kind, SlurmError, SlurmParseError
from slipstream.slurm_plugin.gres import Gres
from slipstream.slurm_plugin.identity import JobRef, TaskId, parse_job_ref
from slipstream.slurm_plugin.pace import Pace
from slipstream.slurm_plugin.poller import Poller
from slipstream.slurm_plugin.protocol import Slurm
from slipstream.slurm_plugin.records import Job, Node, Process, each_task
from slipstream.slurm_plugin.requests import JobUpdate, SignalTo, Submission
from slipstream.slurm_plugin.snapshot import Changes, Snapshot
from slipstream.slurm_plugin.states import JobFlag, JobState, NodeFlag, NodeState
from slipstream.slurm_plugin.version import Version

__all__ = [
    "Backend",
    "Changes",
    "CliSlurm",
    "Connection",
    "Gres",
    "Job",
    "JobFlag",
    "JobRef",
    "JobState",
    "JobUpdate",
    "Kind",
    "Node",
    "NodeFlag",
    "NodeState",
    "Pace",
    "Poller",
    "Process",
    "SignalTo",
    "Slurm",
    "SlurmError",
    "SlurmParseError",
    "Snapshot",
    "Submission",
    "TaskId",
    "Version",
    "connect",
    "each_task",
    "parse_job_ref",
]
