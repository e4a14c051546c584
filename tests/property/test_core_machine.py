# SPDX-License-Identifier: Apache-2.0
"""Whatever happens, in any order: the machine's promises hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_histories import histories, lively
from core_world import RULES
from slipstream.core import events
from slipstream.core.advice import advice_key
from slipstream.core.classes import JobClass, Mode, Role, Strength
from slipstream.core.commands import (
    Admit,
    Advise,
    Extend,
    GiveBack,
    MakeGuest,
    Save,
    Upgrade,
    Withdraw,
)
from slipstream.core.machine import Machine
from slipstream.core.mirror import Mirror, rules_of
from slipstream.core.moving import MOST_AT_ONCE
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.commands import Command
    from slipstream.core.events import Event
    from slipstream.core.state import State

pytestmark = pytest.mark.property


def decided(machine: Machine, history: Sequence[Event]) -> list[list[Command]]:
    """What it commands, event by event."""
    return [machine.handle(event) for event in history]


@given(histories | lively)
def test_the_same_events_give_the_same_commands(history: list[Event]) -> None:
    """Two machines that are told the same say the same."""
    assert decided(Machine(RULES), history) == decided(Machine(RULES), history)


@given(histories | lively, st.integers(0, 30))
def test_a_checkpoint_stands_for_all_that_came_before(history: list[Event], at: int) -> None:
    """A machine restored in the middle commands from there on what the old one does."""
    old, new = Machine(RULES), Machine(RULES)
    decided(old, history[:at])
    checkpoint = old.state.remembered(history[:at][-1].at_s if history[:at] else 1_000.0)
    assert old.handle(checkpoint) == new.handle(checkpoint)
    assert decided(old, history[at:]) == decided(new, history[at:])
    assert old.state.remembered(0.0) == new.state.remembered(0.0)


@given(histories | lively)
def test_every_job_has_a_reason_that_fits_its_phase(history: list[Event]) -> None:
    """A waiting job of ours always says what it waits for; a running one never does."""
    machine = Machine(RULES)
    decided(machine, history)
    not_waiting = {Reason.RUNNING, Reason.SUSPENDED, Reason.COMPLETING, Reason.ENDED}
    for record in machine.state.jobs.values():
        assert (record.reason in not_waiting) is (record.phase.value in not_waiting), record
        if record.phase is Phase.WAITING and record.token:
            assert record.reason not in (Reason.NOT_SEEN_YET, Reason.LEFT_TO_SLURM)


@given(histories | lively)
def test_the_board_is_what_the_machine_believes(history: list[Event]) -> None:
    """Carrying out the commands one by one leaves exactly the advice the machine has in mind."""
    machine, board = Machine(RULES), {}
    for event in history:
        for command in machine.handle(event):
            if isinstance(command, Advise):
                board[command.advice.key] = command.advice
            elif isinstance(command, Withdraw):
                del board[
                    advice_key(command.token, command.task)
                ]  # nothing is withdrawn that was not advised
        if isinstance(event, events.CommandRefused) and not event.about:
            board.pop(advice_key(event.token, event.task), None)
    assert board == machine.state.advice
    if not machine.state.advising:
        assert board == {}


@given(histories | lively)
def test_advice_never_promises_more_than_there_is(history: list[Event]) -> None:
    """No GPU and no slot is advised to two jobs by one round of planning."""
    machine = Machine(RULES)
    decided(machine, history)
    now_s = history[-1].at_s if history else 1_000.0
    machine.handle(events.ModeChanged(now_s, Mode.ADVISE))  # a round over everything
    seats: Counter[tuple[str, Role]] = Counter()
    for advice in machine.state.advice.values():
        if advice.reason is not Reason.ADVISED:
            continue
        asked = machine.state.requests[advice.token]
        seats.update({(name, asked.role): asked.gpus.count for name in advice.nodes})
    for (name, role), count in seats.items():
        there = machine.state.nodes[name]
        free = (
            there.gpus - there.gpus_used if role is Role.OWNER else there.slots - there.slots_used
        )
        assert count <= free, (name, role)


def _open_gpus(state: State, name: str, now_s: float) -> int:
    """GPUs of a node that take guests, counted anew from what was told, one by one."""
    report = state.reports.get(name)
    if report and report.at_s <= now_s - state.rules.report_s:
        report = None
    node, known, shut = state.nodes[name], set(), set()
    for record in state.jobs.values():
        if (
            record.phase not in (Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING)
            or not record.sight
        ):
            continue
        indices = {index for where, index in record.sight.gpu_places if where == name}
        known |= indices
        if not record.token or not state.requests[record.token].shares:
            shut |= indices
    shut |= {gpu.index for gpu in report.gpus if not gpu.takes_guests} if report else set()
    unseen = 0 if report else max(0, node.gpus_used - len(known))
    return max(0, node.gpus - len(shut) - unseen)


@given(histories)
def test_guests_sit_only_where_gpus_take_guests(history: list[Event]) -> None:
    """Seats that are advised are open ones; who finds none is required to wait, owners never."""
    machine = Machine(RULES)
    decided(machine, history)
    now_s = history[-1].at_s if history else 1_000.0
    machine.handle(events.ModeChanged(now_s, Mode.ADVISE))  # a round over everything
    state = machine.state
    seats: Counter[str] = Counter()
    for advice in state.advice.values():
        asked = state.requests[advice.token]
        if asked.role is Role.OWNER:
            moving = any(move.token == advice.token for move in state.moves.values())
            over = advice.reason is Reason.OVER_QUOTA
            assert (advice.strength is Strength.REQUIRE) is (over or moving)
            assert bool(advice.nodes) is not over
            continue
        assert advice.strength is Strength.REQUIRE
        if any(move.token == advice.token for move in state.moves.values()):
            continue
        if advice.reason is Reason.ADVISED:
            seats.update(dict.fromkeys(advice.nodes, asked.gpus.count))
            opened = [_open_gpus(state, name, now_s) for name in advice.nodes]
            assert min(opened) >= min(asked.gpus.count, 4)
        elif advice.nodes:
            assert advice.reason is Reason.NO_FREE_CPU_OR_MEMORY
            opened = [_open_gpus(state, name, now_s) for name in advice.nodes]
            assert min(opened) >= min(asked.gpus.count, 4)
    for name, count in seats.items():
        assert count <= 3 * _open_gpus(state, name, now_s), name


@given(histories)
def test_every_waiting_guest_is_advised_or_left_for_a_reason(history: list[Event]) -> None:
    """None slips past: a guest without advice is one that Slurm cannot start, or nobody could."""
    machine = Machine(RULES)
    decided(machine, history)
    state = machine.state
    machine.handle(events.ModeChanged(history[-1].at_s if history else 1_000.0, Mode.ADVISE))
    left = {Reason.HELD, Reason.DEPENDENCY, Reason.NO_NODE_FITS}
    for record in state.jobs.values():
        if record.phase is not Phase.WAITING or not state.advising or state.slurm_away:
            continue
        if record.token and state.requests[record.token].role is Role.GUEST:
            spoken = {record.advice_key, record.token} & set(state.advice)
            assert bool(spoken) is (record.reason not in left), record


@given(histories | lively)
def test_what_the_brain_believes_is_what_was_seen(history: list[Event]) -> None:
    """Told piece by piece, it believes what one believes that is told everything at once."""
    machine = Machine(RULES)
    decided(machine, history)
    now_s = history[-1].at_s if history else 1_000.0
    machine.handle(events.ModeChanged(now_s, Mode.ADVISE))  # a round over everything
    fresh = Mirror(rules_of(machine.state))
    fresh.look(machine.state, now_s)
    assert _seated(machine._mirror) == _seated(fresh)  # noqa: SLF001 (a belief is private)
    old, new = machine._mirror.brain.tenants, fresh.brain.tenants  # noqa: SLF001
    promised = Counter(
        job.ask.tenant
        for job in machine._mirror.brain.jobs.values()  # noqa: SLF001
        if not job.seen and job.is_guaranteed and job.ask.job_class is not JobClass.SHARED
        for _ in range(job.ask.gpus)
    )
    assert old.gpus == new.gpus
    for name in ("", "lab", "shop"):
        assert old.of(name).charged - promised[name] == new.of(name).charged


def _seated(mirror: Mirror) -> dict[str, tuple[object, ...]]:
    ground = mirror.brain.ground
    return {
        ref: (sorted(ground.places[gpu] for gpu in job.gpus), job.role, job.guards, job.use_pct)
        for ref, job in mirror.brain.jobs.items()
        if job.seen
    }


@given(histories | lively)
def test_only_who_can_go_on_elsewhere_is_moved_and_only_where_all_is_enforced(
    history: list[Event],
) -> None:
    """Nobody who cannot be restored or said --no-slip-move, two at a time, never twice at once."""
    machine = Machine(RULES)
    for event in history:
        before = dict(machine.state.moves)
        saves = [one for one in machine.handle(event) if isinstance(one, Save)]
        state = machine.state
        for save in saves:
            assert state.mode is Mode.ENFORCE
            assert state.advising
            (move,) = [one for one in state.moves.values() if one.token == save.token]
            # One that was given up in this moment may be begun anew: it is another then.
            assert move.key not in before or move.number > before[move.key].number
            assert state.requests[save.token].moves
            told = [job for job in state.reports[save.node].jobs if job.ref == save.job_id]
            assert [job.restorable for job in told] == [True]
            assert move.size or not {*move.origin} & {*move.target}
        assert len(state.moves) <= MOST_AT_ONCE


@given(histories | lively)
def test_only_auto_jobs_become_guests(history: list[Event]) -> None:
    """After a while, where everything is carried out, if they can and there is a seat."""
    machine = Machine(RULES)
    for event in history:
        for made in machine.handle(event):
            if isinstance(made, MakeGuest):
                asked = machine.state.requests[made.token]
                assert machine.state.mode is Mode.ENFORCE
                assert (asked.job_class, asked.may_be_guest) == (JobClass.AUTO, True)
                record = machine.state.jobs[made.key]
                assert event.at_s - record.since_s >= machine.state.rules.guest_after_s


@given(histories | lively)
def test_only_who_yields_is_given_time_and_no_more_than_it_waited(history: list[Event]) -> None:
    """Where everything is carried out; in whole minutes, so that less than one is a present."""
    machine = Machine(RULES)
    for event in history:
        for one in machine.handle(event):
            if isinstance(one, Extend):
                state = machine.state
                asked, sight = state.requests[one.token], state.jobs[one.key].sight
                assert state.mode is Mode.ENFORCE
                assert asked.role is Role.GUEST or asked.job_class is JobClass.SHARED
                assert sight
                assert sight.time_limit_s
                wait = state.waits[one.key]
                assert 0 < one.limit_s - sight.time_limit_s < wait.owed_s + 60
                assert wait.given_s < wait.owed_s + 60


@given(histories | lively)
def test_upgrades_keep_quotas_and_owners_apart(history: list[Event]) -> None:
    """Only `auto` guests, on GPUs and within quotas that are free; only placeholders are ended."""
    machine = Machine(RULES)
    for event in history:
        commands = machine.handle(event)
        state = machine.state
        for one in commands:
            if isinstance(one, GiveBack):
                record = state.jobs[one.key].sight
                assert record
                assert record.holds_for
            if isinstance(one, Upgrade):
                assert state.mode is Mode.ENFORCE
                asked, node = state.requests[one.token], state.nodes[one.node]
                assert (asked.job_class, asked.role) == (JobClass.AUTO, Role.GUEST)
                assert one.gpus <= node.gpus - node.gpus_used
                tenants = machine._mirror.brain.tenants  # noqa: SLF001 (a belief is private)
                charged = tenants.of(asked.account).charged
                assert not tenants.shares or charged in (
                    one.gpus,
                    *range(tenants.quota(asked.account) + 1),
                )
        _assert_one_owner_each(state)


def _assert_one_owner_each(state: State) -> None:
    here = (Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING)
    of_slurm = {
        place: record.key
        for record in state.jobs.values()
        if record.sight and record.phase in here and not record.sight.holds_for
        for place in record.sight.gpu_places
    }
    for one in state.upgrades.values():
        if one.counts and state.jobs[one.key].phase is Phase.RUNNING:
            owners = {of_slurm.get((one.node, index)) for index in one.gpus}
            assert owners == {None}, one


@given(histories)
def test_every_submission_gets_one_short_line(history: list[Event]) -> None:
    """job_submit shows at most 400 bytes of printable text, and drops anything else."""
    machine = Machine(RULES)
    for event in history:
        told = [one for one in machine.handle(event) if isinstance(one, Admit)]
        assert len(told) == isinstance(event, events.JobSubmitted)
        assert all(one.message.isprintable() and len(one.message.encode()) <= 400 for one in told)


@given(histories | lively)
@settings(max_examples=50)
def test_the_machine_comes_to_rest(history: list[Event]) -> None:
    """Told that nothing has happened, it has nothing more to say."""
    machine = Machine(RULES)
    decided(machine, history)
    now_s = history[-1].at_s if history else 1_000.0
    machine.handle(events.TimerFired(now_s))
    assert machine.handle(events.TimerFired(now_s)) == []
    wakes_at_s = machine.wakes_at_s()
    assert wakes_at_s is None or wakes_at_s > now_s  # or the daemon would never sleep


REPLAY = """
import random, sys
from dataclasses import replace
from core_world import RULES, node, request, sight, submitted, looked
from slipstream.core.classes import Role
from slipstream.core.events import ClusterSeen, TimerFired
from slipstream.core.machine import Machine
from slipstream.core.sights import Standing
from slipstream.scheduler.journal_codec import read_event, written

drawn, machine = random.Random(7), Machine(RULES)
names = [f"n{number}" for number in range(12)]
history = [ClusterSeen(at_s=0.0, nodes=tuple(map(node, names)), complete=True)]
for number in range(1, 200):
    asked = request(number, role=drawn.choice(list(Role)), gpus=drawn.randint(1, 4))
    history.append(submitted(replace(asked, nodes_min=drawn.randint(1, 3)), at_s=float(number)))
    standing = drawn.choice(list(Standing))
    history.append(looked(number + 0.5, sight(str(number), asked, standing)))
    history.append(TimerFired(number + 0.7))
for event in history:
    for command in machine.handle(read_event(*written(event))):
        print(*written(command))
"""


def test_a_journal_replays_alike_under_two_hash_seeds() -> None:
    """Events from a journal's text give the same commands, letter by letter, under any seed."""
    roots = os.pathsep.join([str(Path(__file__).parents[1]), *(path for path in sys.path if path)])
    said = [
        subprocess.run(
            [sys.executable, "-c", REPLAY],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": roots},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert said[0].count("Advise") > 20
    assert said[0] == said[1]
