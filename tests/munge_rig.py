# SPDX-License-Identifier: Apache-2.0
"""Real munged daemons, as many hosts and realms as a test needs."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.sandbox.daemons import program
from slipstream.slurm_plugin.munge import Munge, MungeError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Hosts:
    """The scheduler's host, a node's, and one of another realm; `folder` has each one's socket."""

    head: Munge
    node: Munge
    foreign: Munge
    folder: Path


@contextlib.contextmanager
def hosts() -> Iterator[Hosts]:
    """Two hosts of one realm and one of another, that any user may ask."""
    key = realm()
    with tempfile.TemporaryDirectory(prefix="slip-munge-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            munged(folder / "h", key) as head,
            munged(folder / "n", key) as node,
            munged(folder / "f", realm()) as foreign,
        ):
            yield Hosts(head, node, foreign, folder)


@contextlib.contextmanager
def munged(folder: Path, key: bytes) -> Iterator[Munge]:
    """A daemon of its own: another host if the key is that of another, another realm if not."""
    folder.mkdir(mode=0o755)
    (folder / "key").write_bytes(key)
    (folder / "key").chmod(0o600)
    with (folder / "err").open("wb") as err:
        daemon = subprocess.Popen(
            [
                program("munged", "munge"),
                *("--foreground", "--force", "--num-threads=1"),
                *(f"--socket={folder}/s", f"--key-file={folder}/key"),
                *(f"--pid-file={folder}/pid", f"--log-file={folder}/log"),
                f"--seed-file={folder}/seed",
            ],
            stderr=err,
        )
    munge = Munge(f"{folder}/s")
    try:
        deadline = time.monotonic() + 60
        while not _answers(munge):
            assert daemon.poll() is None, (folder / "err").read_text()
            assert time.monotonic() < deadline, (folder / "err").read_text()
            time.sleep(0.02)
        yield munge
    finally:
        daemon.terminate()
        daemon.wait()


def _answers(munge: Munge) -> bool:
    try:
        munge.seal(b"", 0)
    except MungeError:
        return False
    return True


def realm() -> bytes:
    """A new one's key."""
    return secrets.token_bytes(128)


def sealed_as(uid: int, munge: Munge, payload: bytes) -> bytes:
    """What another user seals for root; only root can do that."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(uid)
        os.write(writer, munge.seal(payload, 0))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        credential = answer.read()
    os.waitpid(child, 0)
    return credential
