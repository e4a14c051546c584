# SPDX-License-Identifier: Apache-2.0
"""Clocks, versions, rights, CPUs and the shared filesystem: what each means. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.cli.doctor.findings import bad, good, note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipstream.cli.doctor.facts import Facts
    from slipstream.cli.doctor.findings import Finding

_OFF_S: Final = 3.0
"""slurmctld's stamp has whole seconds, and the answer takes a moment."""
_EVERYBODYS: Final = 0o1777
_SHARED: Final = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse", "9p", "cifs")
_SHOWN_NODES: Final = 8


def clock(facts: Facts) -> Iterator[Finding]:
    """Leases, credentials and advice go by it."""
    off_s = facts.clock_off_s
    if off_s is None:
        return
    if abs(off_s) > _OFF_S:
        where = "ahead of" if off_s > 0 else "behind"
        yield bad(
            "clock",
            f"this host's is {abs(off_s):.0f} s {where} slurmctld's: advice and leases end too "
            "early or too late, and MUNGE refuses at five minutes",
            "let chrony or ntpd run on all hosts: chronyc tracking",
        )
    else:
        yield good("clock", "agrees with slurmctld's")


def versions(facts: Facts) -> Iterator[Finding]:
    """Of our own parts, and of what was built for one Slurm only."""
    runs = str((facts.scheduler or {}).get("version", ""))
    if runs and facts.own_version and runs != facts.own_version:
        yield bad(
            "versions",
            f"the scheduler is {runs}, this command {facts.own_version}",
            "systemctl restart slipstream-scheduler where it runs; the same package on all hosts",
        )
    if facts.wrapper and facts.slurmctld_package and facts.wrapper != facts.slurmctld_package:
        yield bad(
            "select wrapper",
            f"was built for slurmctld {facts.wrapper}, and {facts.slurmctld_package} is installed: "
            "it steps aside, advice is carried out by soft hold",
            "install the package built for this Slurm, then slipstream setup --select-wrapper "
            "--apply, and restart slurmctld",
        )
    elif facts.wrapper:
        yield good("select wrapper", f"for slurmctld {facts.wrapper}")


def permissions(facts: Facts) -> Iterator[Finding]:
    """Slurm's controller must reach the scheduler's socket, and nobody else may stand in for it."""
    if facts.scheduler is None or facts.sockets is None:
        return
    if facts.sockets:
        yield bad(
            "permissions",
            f"{facts.sockets}: submissions are not answered",
            "run the scheduler as SlurmUser (User= of slipstream-scheduler.service), its run dir "
            "with mode 755",
        )
    else:
        yield good("permissions", "slurmctld reaches the scheduler's socket, others do not")


def cpus(facts: Facts) -> Iterator[Finding]:
    """A guest needs a CPU beside the owners'."""
    full = [
        str(one["node"])
        for one in facts.nodes
        if one["gpus"] and one.get("cpus") and one["gpus_used"] and one["cpus_used"] >= one["cpus"]
    ]
    if not full:
        return
    more = f" and {len(full) - _SHOWN_NODES} more" if len(full) > _SHOWN_NODES else ""
    yield note(
        "CPUs",
        f"owners hold every CPU of {', '.join(full[:_SHOWN_NODES])}{more}: no guest starts there",
        "let each GPU come with fewer: slipstream setup names the DefCpuPerGPU that leaves some "
        "(docs/installation.md, Owners that hold all CPUs)",
    )


def durable(facts: Facts) -> Iterator[Finding]:
    """Without it no training leaves its node."""
    if facts.node is None:
        return
    place = facts.node.durable
    if place is None:
        yield note(
            "shared filesystem",
            "no place for checkpoints that outlives the node: nothing is moved",
            "a folder of mode 1777 that all nodes see, as SLIPSTREAM_DURABLE_ROOT in "
            "/etc/default/slipstream",
        )
    elif place.error:
        yield bad(
            "shared filesystem",
            f"{place.path}: {place.error}",
            "mount it here, at the same path as on the other nodes, or correct "
            "SLIPSTREAM_DURABLE_ROOT",
        )
    elif place.mode != _EVERYBODYS:
        yield bad(
            "shared filesystem",
            f"{place.path} has mode {place.mode:o}: users cannot keep checkpoints there, or can "
            "remove each other's",
            f"chmod 1777 {place.path}",
        )
    elif not place.kind.startswith(_SHARED):
        yield note(
            "shared filesystem",
            f"{place.path} is on {place.kind or 'an unknown filesystem'} of this host: do other "
            "nodes see it?",
            "a network filesystem, if there is more than one node",
        )
    elif "soft" in place.options.split(","):
        yield note(
            "shared filesystem",
            f"{place.path} is mounted 'soft': a server that is slow makes saving fail",
            "mount it 'hard'",
        )
    else:
        yield good("shared filesystem", f"{place.path}, {place.kind}")
