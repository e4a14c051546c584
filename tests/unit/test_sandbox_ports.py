# SPDX-License-Identifier: Apache-2.0
"""Ports: never given twice, and a taken one is named."""

from __future__ import annotations

import socket

import pytest

from slipstream.sandbox import SandboxError
from slipstream.sandbox.ports import reserve

pytestmark = pytest.mark.unit


def test_two_reservations_never_share_a_port() -> None:
    """Twenty sandboxes starting together all get ports of their own."""
    held = [reserve(7) for _ in range(20)]
    ports = [port for reservation in held for port in reservation.ports]
    for reservation in held:
        reservation.release()
    assert len(set(ports)) == 140


def test_a_row_already_held_is_refused_and_free_after_release() -> None:
    """The same base twice: the second is told who has it; after release it can be had."""
    first = reserve(3)
    base = first.ports[0]
    with pytest.raises(SandboxError, match=f"port {base} is held by another sandbox"):
        reserve(3, base)
    first.release()
    reserve(3, base).release()


def test_a_port_somebody_listens_on_is_named() -> None:
    """The sentence says which port, and nothing stays reserved."""
    free = reserve(3)
    base = free.ports[0]
    free.release()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", base + 1))
        listener.listen()
        with pytest.raises(SandboxError, match=f"port {base + 1} is taken"):
            reserve(3, base)
    reserve(3, base).release()


@pytest.mark.parametrize("base", [0, -1, 65_535, 100_000])
def test_a_base_that_is_no_port_is_refused(base: int) -> None:
    """Ports end at 65535."""
    with pytest.raises(SandboxError, match="leaves no room"):
        reserve(3, base)
