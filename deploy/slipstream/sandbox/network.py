# SPDX-License-Identifier: Apache-2.0
"""A network namespace per node, racks as bridges, each rack behind a rate-limited uplink.

The namespaces have no names and the machine's own gets no new interface: each is held by a
sleeping process of the keeper's, and with the last of those everything here is gone.

    head ── domain ══ uplink (limited, both ways) ══ rack1 ── n1, n2 …
                   ══ uplink ═════════════════════ rack2 ── n3, n4 …
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from slipstream.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.sandbox.plan import Plan

FABRIC = "fabric"
HEAD = "head"


def hosts_of(plan: Plan) -> tuple[str, ...]:
    """Every namespace the cluster needs: the switches together in one, the head, the nodes."""
    return (FABRIC, HEAD, *plan.shape.node_names)


def holder_argv() -> tuple[str, ...]:
    """A process that does nothing but keep a network namespace alive."""
    return ("unshare", "--net", "--", "sleep", "infinity")


def enter_argv(pid: int) -> tuple[str, ...]:
    """What to put before a command to run it in the network and mounts of `pid`."""
    # With --root a sandbox inside a chroot stays inside it.
    return ("nsenter", "--target", str(pid), "--net", "--mount", "--root", "--")


def wire_up(plan: Plan, holders: Mapping[str, int]) -> None:
    """Lay all cables, given the pid that holds each namespace."""
    ip = {host: _Ip(pid, host) for host, pid in holders.items()}
    ip[FABRIC].batch(fabric_commands(plan, holders))
    for host in (HEAD, *plan.shape.node_names):
        address = plan.head_address if host == HEAD else plan.node_address(host)
        ip[host].batch(["link set lo up", "link set eth0 up", f"address add {address}/16 dev eth0"])
    for line in uplink_limits(plan):
        ip[FABRIC].traffic_control(line)


def fabric_commands(plan: Plan, holders: Mapping[str, int]) -> list[str]:
    """The `ip` commands that build the switches, pure."""
    lines = ["link set lo up", "link add domain type bridge", "link set domain up"]
    lines += _cable("head", "domain", holders[HEAD])
    for number, (rack, nodes) in enumerate(plan.shape.rack_nodes.items(), start=1):
        lines += [f"link add {rack} type bridge", f"link set {rack} up"]
        lines += [f"link add up{number} type veth peer name down{number}"]
        lines += [f"link set up{number} master {rack} up"]
        lines += [f"link set down{number} master domain up"]
        for node in nodes:
            lines += _cable(node, rack, holders[node])
    return lines


def uplink_limits(plan: Plan) -> list[str]:
    """The `tc` commands that make each rack's uplink as narrow as asked, in both directions."""
    rate = plan.shape.uplink_mbit
    burst_kib = max(16, rate // 8)  # one millisecond of traffic: less would not reach the rate
    return [
        f"qdisc add dev {end}{number} root tbf rate {rate}mbit burst {burst_kib}kb latency 50ms"
        for number in range(1, plan.shape.racks + 1)
        for end in ("up", "down")
    ]


def _cable(host: str, bridge: str, holder_pid: int) -> list[str]:
    port = f"p-{host}"
    return [
        f"link add {port} type veth peer name eth0 netns {holder_pid}",
        f"link set {port} master {bridge} up",
    ]


class _Ip:
    """`ip` and `tc` inside one namespace."""

    def __init__(self, pid: int, host: str) -> None:
        self._enter = ("nsenter", "--target", str(pid), "--net", "--")
        self._host = host

    def batch(self, lines: list[str]) -> None:
        self._run(("ip", "-batch", "-"), "\n".join(lines) + "\n")

    def traffic_control(self, line: str) -> None:
        self._run(("tc", *line.split()), "")

    def _run(self, argv: tuple[str, ...], text: str) -> None:
        done = subprocess.run(
            (*self._enter, *argv), input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SandboxError(
                f"the network of {self._host} could not be laid ({' '.join(argv)}): "
                f"{done.stderr.strip() or done.returncode}"
            )
