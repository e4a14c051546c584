# SPDX-License-Identifier: Apache-2.0
"""What each fact means, and what to do about it. Pure; one function for one question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.cli.doctor import host_checks
from slipstream.cli.doctor.findings import bad, good, note
from slipstream.cli.mode import some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from slipstream.cli.doctor.facts import Facts
    from slipstream.cli.doctor.findings import Finding

_TESTED: Final = ("22.05", "24.11", "26.05")
_JOBS_OWN: Final = ("/tmp/", "/dev/shm/")  # noqa: S108 (no files of ours)
"""What job_container/tmpfs gives each job anew."""


def controller(facts: Facts) -> Iterator[Finding]:
    """Without its configuration there is little to look at."""
    if facts.config is None:
        yield bad(
            "slurmctld",
            f"does not answer: {facts.slurm_said}",
            "start it, or set SLURM_CONF; what depends on it was not looked at",
        )
        return
    yield good("slurmctld", "answers")
    known = facts.version.removeprefix("slurm-wlm ").removeprefix("slurm ")
    if known.startswith(_TESTED):
        yield good("Slurm's version", known)
    else:
        yield note(
            "Slurm's version",
            f"{known or 'not known'}: tested are {', '.join(_TESTED)}",
            "try it in mode observe first",
        )


def munge(facts: Facts) -> Iterator[Finding]:
    """Whoever speaks for a user is believed by MUNGE only."""
    if facts.config is None:
        return
    if facts.munge:
        yield bad(
            "munge",
            facts.munge,
            "start munged here, with the cluster's key",
        )
    else:
        yield good("munge", "credentials are made and read here")


def seats(facts: Facts) -> Iterator[Finding]:
    """Guests hold a slot instead of a GPU."""
    if facts.config is None:
        return
    if "slot" in facts.config.get("GresTypes", "").split(","):
        yield good("GresTypes", facts.config["GresTypes"])
    else:
        yield bad(
            "GresTypes",
            "has no 'slot': guests cannot be submitted",
            "slurm.conf: GresTypes=gpu,slot and slot:N in each node's Gres=; gres.conf: "
            "Name=slot Count=N Flags=CountOnly; then restart slurmctld and slurmd",
        )


def submission(facts: Facts) -> Iterator[Finding]:
    """Classes become roles in job_submit; flags come by SPANK."""
    if facts.config is None:
        return
    plugins = facts.config.get("JobSubmitPlugins", "").split(",")
    if "lua" not in plugins:
        yield bad(
            "JobSubmitPlugins",
            "has no 'lua': flags are taken and nothing follows from them",
            "slurm.conf: JobSubmitPlugins=lua; three lines at the end of job_submit.lua "
            "(docs/flags.md)",
        )
    elif facts.job_submit is not None and "slipstream" not in facts.job_submit:
        yield bad(
            "job_submit.lua",
            "does not call Slipstream",
            "add the three lines of docs/flags.md at its end; the site's own rules stay",
        )
    else:
        where = "read" if facts.job_submit is not None else "cannot be read from here"
        yield good("JobSubmitPlugins", f"lua; job_submit.lua {where}")
    if facts.flags:
        yield good("flags", "sbatch knows --slip-class")
    elif facts.flags is not None:
        yield bad(
            "flags",
            "this host's sbatch does not know --slip-class",
            "plugstack.conf: optional slipstream.so, on every host where jobs are submitted or run",
        )


def scheduling(facts: Facts) -> Iterator[Finding]:
    """Settings of Slurm's own scheduler that advice depends on."""
    config = facts.config
    if config is None:
        return
    if "defer" in config.get("SchedulerParameters", "").split(","):
        yield good("SchedulerParameters", "defer is set")
    else:
        yield bad(
            "SchedulerParameters",
            "without 'defer' a job may start inside its own submission, before any advice",
            "slurm.conf: SchedulerParameters=…,defer; scontrol reconfigure",
        )
    if config.get("SelectType") != "select/cons_tres":
        yield note(
            "SelectType",
            f"{config.get('SelectType', 'not set')}: advice is carried out by soft hold only",
            "the select wrapper is for select/cons_tres (docs/advice-board.md)",
        )
    if "GANG" in config.get("PreemptMode", "").split(","):
        yield bad(
            "PreemptMode",
            "GANG: Slurm suspends jobs by itself, guests and turns would be suspended twice",
            "slurm.conf: PreemptMode without GANG; Slipstream takes turns at mini-batches",
        )
    if config.get("JobRequeue") == "0":
        yield note(
            "JobRequeue", "0: jobs that do not say --requeue are never moved", "JobRequeue=1"
        )
    if config.get("JobFileAppend") == "0":
        yield note(
            "JobFileAppend",
            "0: the output of a job that was moved is written anew, from its beginning",
            "slurm.conf: JobFileAppend=1",
        )
    if not facts.topology:
        yield note(
            "topology",
            "Slurm tells of no racks: all nodes count as equally near",
            "slurm.conf: TopologyPlugin=topology/tree and a topology.conf",
        )


def scheduler(facts: Facts) -> Iterator[Finding]:
    """Our own daemon, and what it hears of the nodes."""
    told = facts.scheduler
    if told is None and facts.node is not None and facts.node.linked:
        yield good("scheduler", "hears this node's coordinator, from another host")
        return
    if told is None:
        yield bad(
            "scheduler",
            facts.scheduler_said,
            "jobs run on without it; start it where slurmctld runs",
        )
        return
    if told["switched_off"]:
        yield note("scheduler", "switched off: Slurm decides alone", "slipstream mode --enable")
    else:
        yield good("scheduler", f"answers, mode {told['mode']}, advice by {told['carrier']}")
    if told.get("slurm_away"):
        yield bad(
            "scheduler",
            f"it cannot reach slurmctld: {told['slurm_away']}",
            "its SLURM_CONF and user must be those of an operator",
        )
    silent = [str(one["node"]) for one in facts.nodes if one["gpus"] and not one["devices"]]
    if silent:
        yield bad(
            "coordinators",
            f"nobody reports from {some(silent)}",
            "start the coordinator there, and run this command there; guests start meanwhile, "
            "on GPUs by a static table",
        )
    elif facts.nodes:
        yield good("coordinators", f"all {len(facts.nodes)} nodes report")
    yield from _modes(told)


def _modes(told: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the nodes that report follow the cluster's mode."""
    nodes = told.get("nodes") or {}  # an older scheduler does not say
    if held := [f"{one['node']} (at most {one['at_most']})" for one in nodes.get("held_back", ())]:
        yield note(
            "mode",
            f"held back by their own setting: {some(held)}",
            "SLIPSTREAM_NODE_MODE_AT_MOST in /etc/default/slipstream there, or --mode-at-most",
        )
    if behind := [
        f"{one['node']} ({one['mode'] or 'does not say'})" for one in nodes.get("behind", ())
    ]:
        yield bad(
            "mode",
            f"{told['mode']}, but these nodes do not follow: {some(behind)}",
            "a coordinator of an older version has a mode of its own: upgrade it; else its log "
            "says why",
        )
    if nodes.get("count") and nodes["follow"] == nodes["count"]:
        yield good("mode", f"all {nodes['count']} nodes follow: {told['mode']}")


def node(facts: Facts) -> Iterator[Finding]:
    """What can only be seen where the GPUs are."""
    here = facts.node
    if here is None:
        return
    if here.gpu_error:
        yield bad(
            "GPU driver",
            f"NVML: {here.gpu_error}",
            "install the driver's NVML library (libnvidia-ml.so.1), or look at dmesg",
        )
    else:
        yield good("GPU driver", f"{here.gpus} GPUs")
    if here.mig:
        yield note(
            "MIG",
            f"GPUs {', '.join(map(str, here.mig))} are cut into instances: guests do not join them",
            "nvidia-smi -mig 0, or leave those to owners",
        )
    if here.coordinator:
        yield bad(
            "coordinator",
            f"does not answer: {here.coordinator}",
            f"start it on {here.name}; jobs run on without it, guests take turns by themselves",
        )
    else:
        yield good("coordinator", f"answers on {here.name}")
    if here.linked is False:
        yield bad(
            "link",
            f"the scheduler does not hear the coordinator of {here.name}",
            "its log says why: --scheduler HOST:PORT and the scheduler's listen must agree, both "
            "hosts need munged with one key, and the port must be open (docs/security.md)",
        )
    if here.ramdisk_mib * 10 < here.memory_mib:
        yield note(
            "ramdisk",
            f"{here.ramdisk_mib} MiB free, of {here.memory_mib} MiB of memory: checkpoints may "
            "not fit",
            "give the coordinator --checkpoint-room-mib, or enlarge the tmpfs of /dev/shm",
        )
    else:
        yield good("ramdisk", f"{here.ramdisk_mib} MiB free")
    config = facts.config or {}
    if config.get("ConstrainDevices", "").lower() == "yes" and here.cgroups == 2:  # noqa: PLR2004
        yield bad(
            "cgroups",
            "ConstrainDevices with cgroup v2: a guest cannot be let onto an owner's GPU",
            "cgroup.conf: ConstrainDevices=no on nodes with guests, or boot with cgroup v1 "
            "(docs/coordinator.md)",
        )
    elif here.cgroups:
        yield good("cgroups", f"v{here.cgroups}")


def containers(facts: Facts) -> Iterator[Finding]:
    """With job_container/tmpfs each job has a /tmp and a /dev/shm of its own."""
    here, kind = facts.node, (facts.config or {}).get("JobContainerType", "")
    if here is None or kind != "job_container/tmpfs":
        return
    if here.run_dir.startswith(_JOBS_OWN):
        yield bad(
            "JobContainerType",
            f"jobs do not see {here.run_dir}: they have a folder of their own in its place, and "
            "find neither their control blocks nor their checkpoints",
            "let the coordinator's --run-dir be below /run (docs/moves.md)",
        )
    elif here.below_shm:
        yield bad(
            "JobContainerType",
            f"{here.below_shm[0]} is mounted below /dev/shm: Slurm cannot give jobs one of their "
            "own, and holds every job it starts here ('launch failed requeued held')",
            "unmount it; checkpoints belong below /run",
        )
    else:
        yield good("JobContainerType", f"{kind}; {here.run_dir} is seen by jobs")


CHECKS: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    controller,
    munge,
    host_checks.clock,
    seats,
    submission,
    scheduling,
    host_checks.versions,
    scheduler,
    host_checks.permissions,
    host_checks.cpus,
    node,
    host_checks.durable,
    containers,
)
