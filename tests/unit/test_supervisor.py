# SPDX-License-Identifier: Apache-2.0
"""What systemd hears of a daemon, on a socket like its own."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.wire.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """Systemd's side of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "notify"))
        one.setblocking(False)
        yield one


def heard(listener: socket.socket) -> list[str]:
    """Every word since the last time."""
    words = []
    while True:
        try:
            words.append(listener.recv(4096).decode())
        except BlockingIOError:
            return words


def test_it_hears_that_a_daemon_is_ready_and_that_it_ends(listener: socket.socket) -> None:
    """One datagram each."""
    supervisor = Supervisor({"NOTIFY_SOCKET": listener.getsockname()})
    supervisor.ready()
    supervisor.alive()  # nobody asked for that
    supervisor.stopping()
    assert heard(listener) == ["READY=1", "STOPPING=1"]


def test_it_hears_four_times_in_what_it_waits_that_a_daemon_lives(listener: socket.socket) -> None:
    """However often the daemon ticks."""
    now_s = 100.0
    supervisor = Supervisor(
        {
            "NOTIFY_SOCKET": listener.getsockname(),
            "WATCHDOG_USEC": "8000000",
            "WATCHDOG_PID": str(os.getpid()),
        },
        lambda: now_s,
    )
    for tenth in range(80):
        now_s = 100.0 + tenth / 10
        supervisor.alive()
    assert heard(listener) == ["WATCHDOG=1"] * 4


def test_a_watchdog_for_another_process_is_not_fed(listener: socket.socket) -> None:
    """A child inherits the variables and not the duty."""
    supervisor = Supervisor(
        {
            "NOTIFY_SOCKET": listener.getsockname(),
            "WATCHDOG_USEC": "8000000",
            "WATCHDOG_PID": str(os.getpid() + 1),
        }
    )
    supervisor.alive()
    assert heard(listener) == []


@pytest.mark.parametrize("path", ["", "/nowhere/notify", "@slipstream-nobody-listens"])
def test_without_a_supervisor_nothing_happens(path: str) -> None:
    """A sandbox, a container, a socket that is gone: the daemon runs on."""
    supervisor = Supervisor({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1000"})
    supervisor.ready()
    supervisor.alive()
    supervisor.stopping()


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.stem)
def test_every_unit_is_watched_and_started_again(unit: Path) -> None:
    """And names no file that the package does not install."""
    text = unit.read_text()
    settings = dict(re.findall(r"(?m)^(\w+)=(.*)$", text))
    assert settings["Type"] == "notify"
    assert settings["Restart"] == "always"
    assert int(settings["WatchdogSec"]) >= 30
    assert settings["ExecStart"].split()[0] in {
        "/usr/bin/slipstream",
        "/usr/lib/slipstream/venv/bin/python3",
    }
