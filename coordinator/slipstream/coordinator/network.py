# SPDX-License-Identifier: Apache-2.0
"""What the node's network devices have carried, as the kernel counts it. Read when it is asked for.

Ethernet is in /proc/net/dev; InfiniBand past the kernel (RDMA, as NCCL uses it) is only in the
counters of its ports.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_VIRTUAL: Final = re.compile(r"lo|(veth|docker|br-|virbr|cni|flannel|cali|tun|tap|ifb|dummy).*")
"""What carries again what another device has carried, or nothing."""
_BYTES_RECEIVED, _ERRORS_RECEIVED, _DROPPED_RECEIVED = 0, 2, 3
_BYTES_SENT, _ERRORS_SENT, _DROPPED_SENT = 8, 10, 11
_COLUMNS: Final = 12
_WORD_BYTES: Final = 4
"""Ports count in words of four bytes."""


@dataclass(frozen=True, slots=True)
class Device:
    """One of them; a port of InfiniBand is `mlx5_0:1`."""

    name: str
    received_bytes: int
    sent_bytes: int
    errors: int = 0
    """Frames that were spoiled or dropped, both ways."""


def devices(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> list[Device]:
    """All that carry anything of their own, by name."""
    with contextlib.suppress(OSError):
        found = parse((proc / "self/net/dev").read_text())
        return sorted([*found, *_ports(sys / "class/infiniband")], key=lambda one: one.name)
    return _ports(sys / "class/infiniband")


def parse(text: str) -> list[Device]:
    """The lines of /proc/net/dev; what is not understood is left out."""
    found = []
    for line in text.splitlines():
        name, colon, rest = line.strip().partition(":")
        numbers = [int(word) for word in rest.split() if word.isdigit()]
        if not colon or len(numbers) < _COLUMNS or _VIRTUAL.fullmatch(name):
            continue
        wrong = (_ERRORS_RECEIVED, _DROPPED_RECEIVED, _ERRORS_SENT, _DROPPED_SENT)
        errors = sum(numbers[column] for column in wrong)
        found.append(Device(name, numbers[_BYTES_RECEIVED], numbers[_BYTES_SENT], errors))
    return found


def _ports(folder: Path) -> list[Device]:
    found = []
    for counters in sorted(folder.glob("*/ports/*/counters")):
        port = counters.parent
        with contextlib.suppress(OSError, ValueError):
            read, sent = (
                int((counters / name).read_text()) * _WORD_BYTES
                for name in ("port_rcv_data", "port_xmit_data")
            )
            errors = int((counters / "port_rcv_errors").read_text())
            found.append(Device(f"{port.parents[1].name}:{port.name}", read, sent, errors))
    return found
