# SPDX-License-Identifier: Apache-2.0
"""What an owner says of its waits, without a change in its program, and who makes its word."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gate_rig import (
    GPU,
    JOB,
    make_word,
    owning,
    read_word,
)
from slipstream.coordinator import blocks, phases
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.owner_waits import REMEMBERED, OwnerWaits
from slipstream.torch_hooks.owner_watch import OwnerWatch
from slipstream.wire import owner_phase
from slipstream.wire.control_block import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture
def word(tmp_path: Path) -> Path:
    """The phase word of a GPU, as the coordinator made it."""
    return make_word(tmp_path)


@pytest.fixture
def waits(tmp_path: Path, word: Path) -> Iterator[OwnerWaits]:
    """This process as the owner."""
    assert word.exists()
    made = OwnerWaits(str(tmp_path), JOB, Notes(""))
    yield made
    made.leave()


def test_a_wait_opens_the_word_and_its_end_closes_it(waits: OwnerWaits, word: Path) -> None:
    """With who speaks, from when on the GPU is idle, and when the last wait ended."""
    before_ns = time.monotonic_ns()
    assert waits.begin("here")
    opened = read_word(word)
    waits.end("here")
    closed = read_word(word)
    assert (opened.word & 1, closed.word & 1) == (1, 0)
    assert (opened.pid, opened.job_id, opened.waits) == (os.getpid(), JOB, 1)
    assert before_ns <= opened.idle_from_ns <= closed.closed_ns <= time.monotonic_ns()


def test_the_end_of_a_wait_is_expected_at_the_tenth_percentile(
    waits: OwnerWaits, word: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last 32 at the same place; of a place that is hardly known nothing is expected."""
    now_ns = [1_000_000]
    monkeypatch.setattr("slipstream.torch_hooks.owner_waits.monotonic_ns", lambda: now_ns[0])
    monkeypatch.setattr("slipstream.torch_hooks.owner_waits._Delay.total_ns", lambda _: 0)

    def wait(place: str, duration_ns: int) -> int:
        assert waits.begin(place)
        expected = read_word(word).ends_ns
        began_ns = now_ns[0]
        now_ns[0] += duration_ns
        waits.end(place)
        return expected - began_ns if expected else 0

    assert wait("elsewhere", 5) == 0
    for duration in (9_000, *range(1_000, 1_000 + REMEMBERED)):  # the first is forgotten
        wait("here", duration)
    assert wait("here", 1) == 1_003  # the fourth of 32
    assert wait("elsewhere", 5) == 0


def test_a_wait_inside_a_wait_is_the_same_wait(waits: OwnerWaits, word: Path) -> None:
    """A loader's wait inside one that the user has named."""
    assert waits.begin("outer")
    assert not waits.begin("inner")
    assert read_word(word).waits == 1
    waits.end("outer")
    assert waits.begin("next")
    waits.end("next")


def test_before_there_is_a_word_nothing_is_said(tmp_path: Path) -> None:
    """And not again for two seconds: looking costs more than a wait may."""
    waits = OwnerWaits(str(tmp_path), JOB, Notes(""))
    assert not waits.begin("here")
    make_word(tmp_path)
    assert not waits.begin("here")


def test_the_word_of_another_job_is_not_ours(tmp_path: Path) -> None:
    """The coordinator says whose it is."""
    make_word(tmp_path, job_id=8)
    assert not OwnerWaits(str(tmp_path), JOB, Notes("")).begin("here")


def test_a_word_that_another_process_holds_is_left_to_it(tmp_path: Path, word: Path) -> None:
    """One voice per GPU; noted."""
    notes = Notes("")
    with owning(tmp_path) as owner:
        assert not OwnerWaits(str(tmp_path), JOB, notes).begin("here")
        assert read_word(word).pid == owner.process.pid
    assert notes.counts == {"phase word": 1}


def test_an_owner_after_a_killed_one_begins_closed(tmp_path: Path, word: Path) -> None:
    """Its word was left open in the middle of a wait."""
    with owning(tmp_path) as owner:
        owner.tell("begin")
        owner.kill()
    assert read_word(word).word & 1
    waits = OwnerWaits(str(tmp_path), JOB, Notes(""))
    assert waits.begin("here")
    waits.end("here")
    assert (read_word(word).word & 1, read_word(word).pid) == (0, os.getpid())
    waits.leave()
    assert read_word(word).pid == 0


@pytest.mark.parametrize("damage", [b"", b"x" * 10, b"\0" * owner_phase.FILE_BYTES])
def test_what_is_no_word_is_left_alone(tmp_path: Path, word: Path, damage: bytes) -> None:
    """By owners and by guests."""
    word.write_bytes(damage)
    assert not OwnerWaits(str(tmp_path), JOB, Notes("")).begin("here")
    with pytest.raises(OSError, match="no phase word"):
        OwnerWatch(str(word))


# --- without a change in the program --------------------------------------------------------------

LOADER = """
import time, torch
from slipstream.torch_hooks import attach

class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, index): time.sleep(0.005); return torch.ones(2)

learned = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([learned], lr=0.1)
for batch in torch.utils.data.DataLoader(Data(), num_workers=WORKERS):
    optimizer.zero_grad()
    (learned * batch).sum().backward()
    optimizer.step()
with attach.waiting("validation"):
    pass
print(attach.status().problems)
"""


@pytest.mark.parametrize(("workers", "expected"), [("0", 1), ("1", 12)])
def test_waits_for_data_are_seen(tmp_path: Path, word: Path, workers: str, expected: int) -> None:
    """Of a loader with workers; without them the CPU, which is the device here, computes the data.

    The first batch comes before the thread is known to train, and the end of the data is a wait.
    """
    identity = Identity(
        *(JOB, "0", 0, os.getuid(), Role.OWNER, "shared", "token", (GPU,), os.getpid(), 1)
    )
    page = blocks.create(tmp_path / "blocks", identity, lease_until_ns=1 << 62)
    program = f"from slipstream.torch_hooks import attach; import torch; attach.attach()\n{LOADER}"
    done = subprocess.run(
        [sys.executable, "-c", program.replace("WORKERS", workers)],
        env={**os.environ, "SLIPSTREAM_CONTROL": str(page.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{}\n"
    told = read_word(word)
    assert told.waits in {expected, expected + 1}
    assert (told.pid, told.word & 1) == (0, 0)


# --- the coordinator ------------------------------------------------------------------------------


def test_a_word_stays_for_its_owner_and_is_new_for_the_next(tmp_path: Path, word: Path) -> None:
    """Guests may read it; who had the old file open cannot speak for the new owner."""
    first = word.stat()
    make_word(tmp_path)
    assert word.stat().st_ino == first.st_ino
    assert stat.S_IMODE(first.st_mode) == 0o644
    phases.create(tmp_path, GPU, job_id=8, uid=os.getuid())
    assert word.stat().st_ino != first.st_ino
    assert read_word(word).job_id == 8
    word.write_bytes(b"damaged")
    phases.create(tmp_path, GPU, job_id=8, uid=os.getuid())
    assert owner_phase.is_whole(word.read_bytes())
