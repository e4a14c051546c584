# SPDX-License-Identifier: Apache-2.0
"""The journal: written before, confirmed after, readable by every later version."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, looked, machine, node, request, sight, submitted, token
from slipstream.core.advice import Advice
from slipstream.core.classes import JobClass, Mode, Role, Strength
from slipstream.core.commands import Admit, Advise, Arrival, Settle, Withdraw
from slipstream.core.events import ModeChanged, StateRestored, TimerFired
from slipstream.core.machine import Machine
from slipstream.core.reasons import Reason
from slipstream.scheduler.journal import Entry, Journal, Outcome
from slipstream.scheduler.journal_codec import (
    COMMANDS,
    EVENTS,
    JournalError,
    read_command,
    read_event,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slipstream.core.events import Event

pytestmark = pytest.mark.unit

ADMIT = Admit(token(1), JobClass.SHARED, Role.OWNER, "hello")
ADVISE = Advise(
    Advice(
        token=token(1),
        nodes=("n1",),
        tasks_per_node=1,
        strength=Strength.PREFER,
        until_s=70.0,
        reason=Reason.ADVISED,
    )
)
FIRST_WRITTEN: dict[str, str] = {
    "JobSubmitted": '{"at_s":1.0,"request":{"token":"0000000000000001","job_class":"shared",'
    '"role":"owner","gpus":{"per":"node","count":1}}}',
    "ClusterSeen": '{"at_s":1.0,"jobs":[{"ref":"7_1","standing":"waiting"}],"jobs_gone":["8"],'
    '"nodes":[{"name":"n1","gpus":4}],"nodes_gone":[],"complete":true}',
    "TopologyRead": '{"at_s":1.0,"groups":[{"name":"r1","level":0,"nodes":["n1"]}]}',
    "NodeReported": '{"at_s":1.0,"node":"n1","gpus":[{"index":0,"use_pct":5.0}],'
    '"jobs":[{"ref":"7","minibatch":3}]}',
    "SlurmLost": '{"at_s":1.0,"text":"away"}',
    "SlurmFound": '{"at_s":1.0}',
    "RulesChanged": '{"at_s":1.0,"rules":{"mode":"advise","lease_s":60.0}}',
    "ModeChanged": '{"at_s":1.0,"mode":"advise"}',
    "SwitchedOff": '{"at_s":1.0}',
    "SwitchedOn": '{"at_s":1.0}',
    "CommandRefused": '{"at_s":1.0,"token":"0000000000000001","text":"full"}',
    "MoveAsked": '{"at_s":1.0,"key":"7","nodes":["n2"],"why":"repair","forced":true}',
    "ResizeAsked": '{"at_s":1.0,"key":"7","gpus":2,"why":"idle","forced":true}',
    "ParkAsked": '{"at_s":1.0,"key":"7","parked":true,"why":"a course","until_s":61.0}',
    "JobSaved": '{"at_s":1.0,"node":"n1","job_id":"7","number":1,"bytes_carried":5,"seconds":0.1}',
    "SchedulerStarted": '{"at_s":1.0}',
    "TimerFired": '{"at_s":1.0}',
    "StateRestored": '{"at_s":1.0,"mode":"observe","jobs":[{"key":"7","phase":"waiting",'
    '"reason":"held","since_s":1.0,"story":[{"at_s":1.0,"text":"x"}]}]}',
    "Admit": '{"token":"0000000000000001","job_class":"shared","role":"owner","message":"hello"}',
    "Advise": '{"advice":{"token":"0000000000000001","nodes":["n1"],"tasks_per_node":1,'
    '"strength":"prefer","until_s":70.0,"reason":"advised"}}',
    "Withdraw": '{"token":"0000000000000001"}',
    "Settle": '{"token":"0000000000000001","arrival":"seen","ref":"7"}',
    "Save": '{"token":"0000000000000001","job_id":"7","node":"n1","number":1}',
    "Prepare": '{"token":"0000000000000001","job_id":"7","nodes":["n2"],"uid":1000,"number":1}',
    "Requeue": '{"token":"0000000000000001","key":"7","number":1}',
    "Start": '{"token":"0000000000000001","key":"7","number":1,"nodes":["n2"]}',
    "MakeGuest": '{"token":"0000000000000001","key":"7","seats":1}',
    "Resize": '{"token":"0000000000000001","key":"7","size":1}',
    "Upgrade": '{"token":"0000000000000001","number":"7","node":"n1","gpus":1}',
    "GiveBack": '{"token":"","key":"8"}',
    "Extend": '{"token":"0000000000000001","key":"7","run":5,"limit_s":3720}',
}
"""A line of each kind as a released version wrote it. Add lines; never change one."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A new one."""
    one = Journal(tmp_path / "journal.sqlite")
    yield one
    one.close()


def test_every_kind_that_was_ever_written_can_be_read() -> None:
    """Fields may be added with defaults; none may be renamed."""
    assert set(FIRST_WRITTEN) == set(EVENTS) | set(COMMANDS)
    for kind, body in FIRST_WRITTEN.items():
        found = read_event(kind, body) if kind in EVENTS else read_command(kind, body)
        assert type(found).__name__ == kind
        again = written(found)
        assert (read_event if kind in EVENTS else read_command)(*again) == found


@pytest.mark.parametrize(
    ("kind", "body", "sentence"),
    [
        ("Bogus", "{}", "kind 'Bogus' is not known in a journal, only "),
        ("ModeChanged", '{"at_s":1.0,"mode":"bogus"}', "ModeChanged not understood .*bogus"),
        ("ModeChanged", "{", "ModeChanged not understood"),
    ],
)
def test_a_line_that_is_not_understood_is_quoted(kind: str, body: str, sentence: str) -> None:
    """A journal is never skipped over in silence."""
    with pytest.raises(JournalError, match=sentence):
        read_event(kind, body)


def test_it_is_written_through_to_the_disk(tmp_path: Path) -> None:
    """WAL and synchronous=FULL, as promised."""
    path = tmp_path / "journal.sqlite"
    one = Journal(path)
    (mode,) = one._db.execute("PRAGMA journal_mode").fetchone()  # noqa: SLF001 (a promise)
    (synchronous,) = one._db.execute("PRAGMA synchronous").fetchone()  # noqa: SLF001 (as above)
    one.close()
    assert (mode, synchronous) == ("wal", 2)


def test_what_is_intended_is_open_until_it_is_finished(journal: Journal) -> None:
    """Advice is done when it was given, an admission when Slurm shows the job."""
    event = submitted(request(1))
    open_ones = journal.record([Entry(event, (ADMIT, ADVISE))])
    assert [one.command for one in open_ones] == [ADMIT, ADVISE]
    assert journal.intentions() == open_ones
    journal.finish([(open_ones[1].id, Outcome.DONE, "")])
    assert [one.command for one in journal.intentions()] == [ADMIT]
    seen = Settle(token(1), Arrival.SEEN, "7")
    assert journal.record([Entry(looked(2.0, sight("7", request(1))), (seen,))]) == []
    assert journal.intentions() == []
    assert [(one.command, one.outcome, one.note) for one in journal.intentions(token(1))] == [
        (ADMIT, Outcome.DONE, "job 7"),
        (ADVISE, Outcome.DONE, ""),
        (seen, Outcome.DONE, ""),
    ]


def test_a_lost_job_leaves_a_lapsed_admission(journal: Journal) -> None:
    """Nothing stays open for ever."""
    journal.record([Entry(submitted(request(1)), (ADMIT,))])
    journal.record([Entry(TimerFired(99.0), (Settle(token(1), Arrival.LOST),))])
    assert journal.intentions(token(1))[0].outcome is Outcome.LAPSED


def test_a_batch_is_written_whole_or_not_at_all(journal: Journal) -> None:
    """The second entry cannot be written: the first is not there either."""
    broken = Entry(TimerFired("soon"), (ADMIT,))  # type: ignore[arg-type]
    journal._db.execute(  # noqa: SLF001 (a disk that refuses, as near as a test can get)
        "CREATE TRIGGER full BEFORE INSERT ON event WHEN NEW.at_s = 'soon' "
        "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    with pytest.raises(sqlite3.Error, match="disk full"):
        journal.record([Entry(submitted(request(1)), (ADMIT,)), broken])
    assert journal.count() == 0
    assert journal.intentions() == []


def test_a_journal_brings_the_machine_back(journal: Journal) -> None:
    """Told the journal's events, a new machine knows what the old one knew."""
    old = machine(node("n1"))
    history: list[Event] = [
        old.state.remembered(1.0),
        submitted(request(1)),
        looked(11.0, sight("7", request(1))),
        ModeChanged(12.0, Mode.ENFORCE),
    ]
    journal.record([Entry(event, tuple(old.handle(event))) for event in history])
    new = Machine(RULES)
    for event in journal.events():
        new.handle(event)
    assert new.state.remembered(0.0) == old.state.remembered(0.0)


def test_a_checkpoint_shortens_the_journal(journal: Journal) -> None:
    """What came before is gone, but for what is still open."""
    old = machine(node("n1"))
    journal.record([Entry(submitted(request(1)), (ADMIT, Withdraw(token(2))))])
    withdrawn = journal.intentions()[1]
    journal.finish([(withdrawn.id, Outcome.DONE, "")])
    journal.record([Entry(old.state.remembered(20.0), ())])
    journal.record([Entry(TimerFired(21.0), ())])
    journal.forget_before_checkpoint()
    kinds = [type(event) for event in journal.events()]
    assert kinds == [StateRestored, TimerFired]
    assert journal.count() == 2
    assert [one.command for one in journal.intentions()] == [ADMIT]


def test_a_journal_can_be_read_beside_its_writer(tmp_path: Path) -> None:
    """Without a right to write; one that is not there is not made."""
    path = tmp_path / "journal.sqlite"
    with pytest.raises(sqlite3.Error):
        Journal(path, read_only=True)
    writer = Journal(path)
    entry = Entry(submitted(request(1)), (ADMIT, ADVISE))
    writer.record([entry])
    reader = Journal(path, read_only=True)
    assert list(reader.entries()) == [entry]
    with pytest.raises(sqlite3.Error, match="readonly"):
        reader.record([entry])
    reader.close()
    writer.close()


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    """Rather than read wrongly."""
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=9")
    db.close()
    with pytest.raises(JournalError, match="version 9, this is 1"):
        Journal(path)
