# SPDX-License-Identifier: Apache-2.0
"""Killed between any two writes, started again: the same end, nothing lost, nothing done twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core_world import looked, machine, node, request, sight, submitted, token
from slipstream.core.advice import advice_key
from slipstream.core.commands import Advise, Requeue, Save
from slipstream.core.events import CommandRefused, SwitchedOff, SwitchedOn
from slipstream.scheduler.daemon import replayed
from slipstream.scheduler.enactor import Enactor
from slipstream.scheduler.journal import Entry, Journal, Outcome
from slipstream.scheduler.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.advice import Advice
    from slipstream.core.events import Event
    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit

CHILD = """
import os, signal, sys
from pathlib import Path
from core_world import looked, machine, node, request, sight, submitted, token
from slipstream.core.commands import Advise
from slipstream.scheduler.enactor import Enactor
from slipstream.scheduler.journal import Entry, Journal
from unit.test_scheduler_crash import FileBoard, history

class Deadly(FileBoard):
    def advise(self, advice):
        if dies == "before the deed":
            os.kill(os.getpid(), signal.SIGKILL)
        super().advise(advice)
        if dies == "after the deed":
            os.kill(os.getpid(), signal.SIGKILL)

class DeadlyJournal(Journal):
    def record(self, entries):
        if dies == "before the journal":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().record(entries)
    def finish(self, results):
        super().finish(results)
        if dies == "after all" and results:
            os.kill(os.getpid(), signal.SIGKILL)

folder, dies = Path(sys.argv[1]), sys.argv[2]
one = machine()
enactor = Enactor(DeadlyJournal(folder / "journal.sqlite"), Deadly(folder), print, print)
enactor.start(())
entries = [Entry(event, tuple(one.handle(event))) for event in history()]
for command in (command for entry in entries for command in entry.commands):
    if isinstance(command, Advise):
        enactor.ahead(command.advice)
for entry in entries:
    enactor.put(entry)
enactor.stop()
"""


class FileBoard:
    """A board that outlives the process that writes it: one file per key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "board"
        self._folder.mkdir(exist_ok=True)

    def ahead(self, advice: Advice) -> None:
        """The same file, before anything is journalled."""
        FileBoard.advise(self, advice)

    def advise(self, advice: Advice) -> None:
        """One file."""
        (self._folder / advice.key).write_text(json.dumps(advice.nodes))

    def withdraw(self, token: str, task: int | None) -> None:
        """No file."""
        (self._folder / advice_key(token, task)).unlink(missing_ok=True)

    def replace(self, advice: Sequence[Advice]) -> None:
        """These files only."""
        for path in self._folder.iterdir():
            path.unlink()
        for one in advice:
            self.advise(one)

    def says(self) -> dict[str, list[str]]:
        """Advice by its key: the nodes."""
        return {path.name: json.loads(path.read_text()) for path in self._folder.iterdir()}


class FullBoard(FileBoard):
    """One that takes nothing."""

    def ahead(self, advice: Advice) -> None:
        """Refuse."""
        self.advise(advice)

    def advise(self, advice: Advice) -> None:
        """Refuse."""
        raise SinkError(f"no room for {advice.token}")


def history() -> list[Event]:
    """Two nodes are seen, a job is announced."""
    seen = machine(node("n1"), node("n2")).state.remembered(5.0)
    return [seen, submitted(request(1), at_s=10.0)]


def restart(folder: Path) -> tuple[Machine, Journal]:
    """What a daemon does at its start."""
    journal = Journal(folder / "journal.sqlite")
    one = replayed(journal)
    Enactor(journal, FileBoard(folder), print, print).reconcile(tuple(one.state.advice.values()))
    return one, journal


@pytest.mark.parametrize(
    "dies", ["before the journal", "before the deed", "after the deed", "after all", "never"]
)
def test_kill_9_at_any_point_leads_to_the_same_end(tmp_path: Path, dies: str) -> None:
    """Restarted and told what Slurm shows: one job, settled once, the same advice on the board."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), dies],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *filter(None, sys.path)])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if dies == "never" else -signal.SIGKILL), done.stderr
    assert FileBoard(tmp_path).says(), "it was said before the journal was written"
    one, journal = restart(tmp_path)
    assert {*FileBoard(tmp_path).says()} == {*one.state.advice}, "nothing that nobody remembers"
    # Before the journal nothing is known; but the job's marker and Slurm's nodes are.
    seen = looked(20.0, sight("7", request(1)))
    events: list[Event] = [machine(node("n1"), node("n2")).state.remembered(19.0), seen]
    enactor = Enactor(journal, FileBoard(tmp_path), print, print)
    enactor.start(tuple(one.state.advice.values()))
    for event in events if dies == "before the journal" else events[1:]:
        enactor.put(Entry(event, tuple(one.handle(event))))
    enactor.stop()
    assert FileBoard(tmp_path).says() == {token(1): ["n1"]}
    found = {(type(i.command).__name__, i.outcome) for i in journal.intentions(token(1))}
    assert ("Settle", Outcome.DONE) in found
    assert all(outcome is Outcome.DONE for _, outcome in found)
    assert journal.intentions() == []
    journal.close()


def test_the_first_advice_of_a_job_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """Slurm may look for a place for it at once; a board that refuses is heard of later."""
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        commands = machine(node("n1")).handle(submitted(request(1)))
        (said,) = [one.advice for one in commands if isinstance(one, Advise)]
        board, never = FileBoard(tmp_path), Enactor(journal, FileBoard(tmp_path), print, print)
        never.ahead(said)
        assert board.says() == {token(1): ["n1"]}
        Enactor(journal, FullBoard(tmp_path), print, print).ahead(replace(said, token=token(2)))
        assert board.says() == {token(1): ["n1"]}


def test_refused_advice_comes_back_as_an_event(tmp_path: Path) -> None:
    """The machine learns that the board has no room, the journal keeps it."""
    told: list[Event] = []
    journal = Journal(tmp_path / "journal.sqlite")
    enactor = Enactor(journal, FullBoard(tmp_path), told.append, print)
    one = machine(node("n1"))
    enactor.start(())
    event = submitted(request(1))
    enactor.put(Entry(event, tuple(one.handle(event))))
    enactor.stop()
    (refused,) = told
    assert isinstance(refused, CommandRefused)
    assert refused.text == f"no room for {token(1)}"
    outcomes = [one.outcome for one in journal.intentions(token(1))]
    assert outcomes == [Outcome.INTENDED, Outcome.REFUSED]
    journal.close()


def test_a_refusal_names_the_job_it_is_about(tmp_path: Path) -> None:
    """Tasks of an array share their token; it is on disk like any other event."""
    told: list[Event] = []
    journal = Journal(tmp_path / "journal.sqlite")
    enactor = Enactor(journal, FileBoard(tmp_path), told.append, print)
    enactor.start(())
    deeds = (Requeue(token(1), "5_1", 1), Save(token(1), "6", "n1", 1))
    enactor.put(Entry(SwitchedOn(1.0), deeds))
    enactor.stop()
    found = [one for one in told if isinstance(one, CommandRefused)]
    assert [one.job for one in found] == ["5_1", "6"]
    journal.record([Entry(one, ()) for one in found])
    assert list(journal.events())[1:] == found
    journal.close()


def test_a_journal_that_cannot_be_written_ends_the_daemon(tmp_path: Path) -> None:
    """Nothing is carried out that is not on disk; somebody is told."""
    journal = Journal(tmp_path / "journal.sqlite")
    journal._db.execute(  # noqa: SLF001 (a disk that refuses, as near as a test can get)
        "CREATE TRIGGER broken BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'no disk'); END"
    )
    failed: list[str] = []
    enactor = Enactor(journal, FileBoard(tmp_path), print, failed.append)
    one = machine(node("n1"))
    enactor.start(())
    event = submitted(request(1))
    enactor.put(Entry(event, tuple(one.handle(event))))
    enactor.stop()
    journal.close()
    assert failed == ["the journal cannot be written: no disk"]
    assert FileBoard(tmp_path).says() == {}


def test_the_kill_switch_empties_the_board_of_what_was_said_ahead(tmp_path: Path) -> None:
    """A burst was answered, the switch is found when it is settled: nothing is advised any more."""
    board = FileBoard(tmp_path)
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        enactor = Enactor(journal, board, print, print)
        (said,) = [
            one.advice
            for one in machine(node("n1")).handle(submitted(request(1)))
            if isinstance(one, Advise)
        ]
        enactor.reconcile(())
        enactor.ahead(said)
        enactor._do(  # noqa: SLF001 (one batch, whatever the threads do)
            [Entry(SwitchedOff(1.0), ()), Entry(submitted(request(1)), ())]
        )
        assert board.says() == {}
        enactor.ahead(said)
        enactor._do([Entry(SwitchedOff(2.0), ()), Entry(SwitchedOn(3.0), ())])  # noqa: SLF001 (the same)
        assert board.says() == {token(1): ["n1"]}


def test_the_kill_switch_empties_the_whole_board(tmp_path: Path) -> None:
    """Also what we did not know of."""
    board = FileBoard(tmp_path)
    journal = Journal(tmp_path / "journal.sqlite")
    enactor = Enactor(journal, board, print, print)
    enactor.start(())
    (tmp_path / "board" / token(9)).write_text("[]")
    enactor.put(Entry(SwitchedOff(1.0), ()))
    enactor.stop()
    journal.close()
    assert board.says() == {}
