# SPDX-License-Identifier: Apache-2.0
"""The process everything in a sandbox hangs below; it starts the cluster and takes it down.

It is born by `slipstream sandbox up` with a pipe to it. Until that command says "adopt" (or for
as long as a test holds the pipe), the end of the pipe ends the sandbox: a killed `up` leaves
nothing. Daemons die with the keeper by PR_SET_PDEATHSIG; orphans of jobs become its children,
because it is their subreaper, and so none can escape it.

SIGTERM: take everything down and remove every file. SIGHUP: start again what has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slipstream.sandbox import daemons, files, network, plugins, processes
from slipstream.sandbox.accounting import (
    create_accounts,
    create_database_user,
    database_answers,
    initialise_database,
    user_names,
)
from slipstream.sandbox.environment import slurm_environment
from slipstream.sandbox.errors import SandboxError
from slipstream.sandbox.layout import Layout
from slipstream.sandbox.plan import Plan, load_plan
from slipstream.sandbox.ports import loopback_of_own_name, reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from slipstream.sandbox.daemons import Daemon

_STARTED_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.02


class _AskedToEnd(Exception):  # noqa: N818 (not an error: the normal way out)
    """SIGTERM came, or nobody is left at the other end of the pipe."""


class Keeper:
    """Starts a planned sandbox, keeps it, and ends it without a trace."""

    def __init__(self, layout: Layout, plan: Plan, starter: int) -> None:
        self._layout = layout
        self._starter = starter
        self._plan = plan
        self._running: dict[str, tuple[Daemon, processes.Process]] = {}
        self._holders: dict[str, processes.Process] = {}
        self._adopted = False
        self._told: set[signal.Signals] = set()
        self._uids = {os.getuid(), int(os.environ.get("SUDO_UID", os.getuid()))}

    def run(self) -> int:
        """Live from start to end; the exit code."""
        processes.become_subreaper()
        self._hear_signals()
        self._write_daemons()
        try:
            self._start()
            self._say(ready=True)
            os.close(self._starter)
            self._keep()
        except _AskedToEnd:
            return 0
        except SandboxError as error:
            self._say(error=str(error))
            return 1
        except Exception as error:
            self._say(error=f"the sandbox's keeper failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._end()
        return 0

    # --- start ------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._step("ports"):
            self._reservation = reserve(self._plan.port_count, self._plan.port_base)
        self._plan = self._plan.settled(self._reservation.ports, loopback_of_own_name())
        self._plan.store(self._layout.record)
        password = os.urandom(12).hex()
        with self._step("files"):
            files.write_all(self._plan, self._layout, database_password=password)
        if self._plan.netns:
            with self._step("network"):
                self._lay_network()
        with self._step("munged"):
            self._launch(daemons.munged(self._layout))
            self._until(self._munge_answers, "munged to answer")
        if self._plan.accounting:
            self._start_accounting(password)
        with self._step("slurmctld and slurmd"):
            self._launch(daemons.slurmctld(self._layout))
            for node in self._plan.shape.node_names:
                self._launch(daemons.slurmd(self._plan, self._layout, node))
            self._until(self._nodes_are_idle, "all nodes to be idle")
        if self._plan.daemons:
            with self._step("slipstream"):
                self._start_slipstream()

    def _start_slipstream(self) -> None:
        nodes = self._plan.shape.node_names
        self._launch(daemons.scheduler(self._plan, self._layout))
        for node in nodes:
            self._launch(daemons.coordinator(self._plan, self._layout, node))
        sockets = [self._layout.run / "submit.sock", self._layout.run / "api.sock"]
        sockets += [plugins.run_folder(self._layout, node) / "node.sock" for node in nodes]
        self._until(lambda: all(path.exists() for path in sockets), "Slipstream's sockets")
        heard = [plugins.run_folder(self._layout, node) / "mode.json" for node in nodes]
        self._until(lambda: all(path.exists() for path in heard), "the nodes to hear the scheduler")

    def _start_accounting(self, password: str) -> None:
        with self._step("mariadb"):
            initialise_database(self._layout)
            self._launch(daemons.mariadbd(self._plan, self._layout))
            self._until(lambda: database_answers(self._layout), "MariaDB to answer")
            create_database_user(self._layout, password)
        with self._step("slurmdbd"):
            self._launch(daemons.slurmdbd())
            self._until(lambda: self._ask("sacctmgr", "-n", "show", "cluster").ok, "slurmdbd")
            create_accounts(self._layout.name, user_names(self._uids), self._environment)

    def _lay_network(self) -> None:
        files.unshare_mounts_with_hosts(self._layout)
        for host in network.hosts_of(self._plan):
            self._holders[host] = self._spawn(
                network.holder_argv(), self._layout.log / "net.stderr"
            )
        own = Path("/proc/self/ns/net").readlink()
        for holder in self._holders.values():
            # `unshare` is our child at once, but in its own namespace only a moment later.
            link = Path(f"/proc/{holder.pid}/ns/net")
            self._until(partial(_differs, link, own), "a network namespace")
        network.wire_up(self._plan, {host: held.pid for host, held in self._holders.items()})

    def _launch(self, daemon: Daemon) -> None:
        argv = daemon.argv
        if self._holders:
            argv = (*network.enter_argv(self._holders[daemon.host].pid), *argv)
        stderr = self._layout.log / f"{daemon.name}.stderr"  # what it says before it has a log
        self._running[daemon.name] = (daemon, self._spawn(argv, stderr, daemon.environment))
        self._write_daemons()

    def _spawn(
        self, argv: tuple[str, ...], stderr: Path, environment: Mapping[str, str] | None = None
    ) -> processes.Process:
        with stderr.open("ab") as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self._environment, **(environment or {})},
                cwd="/",
                start_new_session=True,
                preexec_fn=processes.die_with_parent,  # noqa: PLW1509 (the keeper has one thread)
            )
        child.returncode = 0  # reaped by processes.reap, never by Popen
        born = processes.process(child.pid)
        if born is None:
            raise SandboxError(f"{argv[0]} could not be started")
        return born

    def _write_daemons(self) -> None:
        entries = {"keeper": processes.process(os.getpid())}
        entries |= {f"net-{host}": held for host, held in self._holders.items()}
        entries |= {name: running for name, (_, running) in self._running.items()}
        text = json.dumps({name: [p.pid, p.started_ticks] for name, p in entries.items() if p})
        beside = self._layout.daemons.with_suffix(".new")
        beside.write_text(text + "\n")
        beside.rename(self._layout.daemons)

    # --- waiting ----------------------------------------------------------------------------

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while not ready():
            self._look_around()
            for name, code in self._newly_ended():
                raise SandboxError(
                    f"{name} ended with code {code} while waiting for {what}:\n{self._tail(name)}"
                )
            if time.monotonic() > deadline:
                newest = list(self._running)[-1]
                raise SandboxError(
                    f"waited {_STARTED_WITHIN_S:.0f} s for {what} in vain:\n{self._tail(newest)}"
                )
            time.sleep(_LOOK_EVERY_S)

    def _munge_answers(self) -> bool:
        return self._ask("munge", "-S", str(self._layout.munge_socket), "-n").ok

    def _nodes_are_idle(self) -> bool:
        answer = self._ask("sinfo", "-h", "-N", "-o", "%T")
        return answer.ok and answer.text.split() == ["idle"] * self._plan.shape.nodes

    def _ask(self, *argv: str) -> _Answer:
        enter = network.enter_argv(self._holders["head"].pid) if self._holders else ()
        done = subprocess.run(
            (*enter, *argv), env=self._environment, capture_output=True, text=True, check=False
        )
        return _Answer(done.returncode == 0, done.stdout)

    @property
    def _environment(self) -> dict[str, str]:
        return slurm_environment(self._layout, os.environ)

    # --- keep -------------------------------------------------------------------------------

    def _keep(self) -> None:
        while True:
            self._look_around(wait_s=30.0)
            for name, code in self._newly_ended():
                print(f"{time.time():.3f} {name} ended with code {code}", flush=True)  # noqa: T201 (stdout is the keeper's log by now)
            if signal.SIGHUP in self._told:
                self._told.discard(signal.SIGHUP)
                self._revive()

    def _revive(self) -> None:
        for daemon, running in list(self._running.values()):
            if not running.alive:
                self._launch(daemon)

    def _newly_ended(self) -> Iterator[tuple[str, int]]:
        codes = processes.reap()
        for name, (_, running) in self._running.items():
            if running.pid in codes:
                yield name, codes[running.pid]

    def _look_around(self, wait_s: float = 0.0) -> None:
        """Hear signals and the pipe; raise when it is time to go."""
        watched = [self._wakeup] if self._adopted else [self._wakeup, 0]
        readable, _, _ = select.select(watched, [], [], wait_s)
        if self._wakeup in readable:
            with contextlib.suppress(BlockingIOError):
                self._told |= {signal.Signals(number) for number in os.read(self._wakeup, 256)}
        if 0 in readable:
            if os.read(0, 64).strip() != b"adopt":
                raise _AskedToEnd
            self._adopted = True
        if self._told & {signal.SIGTERM, signal.SIGINT}:
            raise _AskedToEnd

    def _hear_signals(self) -> None:
        self._wakeup, write = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self._say(step=name, took_s=round(time.monotonic() - begun, 3))

    def _say(self, **message: object) -> None:
        """One line to the command that started us; it may be gone."""
        with contextlib.suppress(OSError):
            os.write(self._starter, (json.dumps(message) + "\n").encode())

    def _tail(self, name: str) -> str:
        """What the daemon said last."""
        lines = (self._layout.log / f"{name}.stderr").read_text(errors="replace").splitlines()
        telling = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
        return "\n".join(f"  {line}" for line in (telling or lines)[-5:])

    # --- end --------------------------------------------------------------------------------

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # once begun, it is finished
        left = processes.end_all(lambda: processes.descendants(os.getpid()))
        if left:
            print(f"could not end {sorted(left)}", flush=True)  # noqa: T201 (the keeper's log)
        files.remove_all(self._layout)


def _differs(link: Path, own: Path) -> bool:
    return link.readlink() != own


class _Answer(NamedTuple):
    ok: bool
    text: str


def main() -> int:
    """Run as `python -m slipstream.sandbox.keeper HOME NAME FD`, fd 0 and FD to the starter."""
    if os.fork():
        return 0  # whoever started us need not, and cannot, wait for us
    layout = Layout(Path(sys.argv[1]), sys.argv[2])
    return Keeper(layout, load_plan(layout.record), int(sys.argv[3])).run()


if __name__ == "__main__":
    sys.exit(main())
