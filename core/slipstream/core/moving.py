# SPDX-License-Identifier: Apache-2.0
"""Moving a job to other nodes, or to another size: a saga of four stages. Pure.

Each stage has a deadline and a way back.

    saving     its node saves it and carries that to the shared filesystem
    leaving    Slurm requeues it; until it completes no more
    placing    it waits for its new nodes, required by advice, which expires; its size is changed
    restoring  it runs there, until its first mini-batch

Up to the requeue every failure leaves the job running as it was. After it the job is Slurm's like
any other: it starts anywhere, from the copy that was carried.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.core.advice import advice_key
from slipstream.core.commands import Prepare, Requeue, Save, Start
from slipstream.core.moves import CRED_EXPIRE_S, LOST, PATIENCE_S, Left, Saga, Stage
from slipstream.core.placement import need_of
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.core.commands import Command
    from slipstream.core.events import (
        CommandRefused,
        JobSaved,
        MoveAsked,
        NodeReported,
        ResizeAsked,
    )
    from slipstream.core.placement import Need, Placement
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import JobSight
    from slipstream.core.state import State

BETWEEN_MOVES_S: Final = 600.0
"""SEEDS: a job moves at most once in ten minutes."""
_STARTS: Final = 5
"""How often a job that has left is told to start on its new nodes, should Slurm be away."""
MOST_AT_ONCE: Final = 2
"""Moves of our own under way: each is work for disks, network and Slurm."""


def target_for(
    state: State,
    probe: Callable[[Need], Placement | Reason],
    key: str,
    nodes: tuple[str, ...],
    at_s: float,
    *,
    forced: bool,
) -> Placement | Reason:
    """Where a job would move to, or why it does not. Without `nodes` the best other ones."""
    pause_s = state.rules.requeue_pause_s if forced else BETWEEN_MOVES_S
    why = stays(state, key, at_s, pause_s, forced=forced)
    if why is not None:
        return why
    record = state.jobs[key]
    need = need_of(state.requests[record.token], record.sight)
    if need is None:
        return Reason.SHAPE_NOT_HANDLED
    return probe(elsewhere(state, record, need, nodes))


def stays(  # noqa: PLR0911 (one for each way a job does not move)
    state: State, key: str, at_s: float, pause_s: float, *, forced: bool
) -> Reason | None:
    """Why a job is left where it is, wherever it should go; `pause_s` after it last left.

    By us also after it was last to leave: what could not be saved is not tried again at once.
    """
    record = state.jobs.get(key)
    if key in state.moves:
        return Reason.MOVING
    if record is None or record.phase is not Phase.RUNNING or record.sight is None:
        return Reason.MOVES_ONLY_RUNNING
    if not record.token:
        return Reason.LEFT_TO_SLURM
    if key in state.parked and not forced:
        return Reason.PARKED
    if not state.requests[record.token].moves:
        return Reason.MOVES_NEVER
    if len(record.sight.nodes) != 1:
        return Reason.MOVES_ONE_NODE_ONLY
    if not _is_restorable(state, record):
        return Reason.NOT_RESTORABLE
    left = state.left.get(key)
    since = [left.at_s, None if forced else left.tried_at_s] if left else []
    lately = any(then_s is not None and at_s - then_s < pause_s for then_s in since)
    return Reason.MOVED_LATELY if lately else None


def elsewhere(state: State, record: JobRecord, need: Need, nodes: tuple[str, ...] = ()) -> Need:
    """The same on other nodes: on these, where its user lets it, and not where it was just now."""
    assert record.sight is not None  # noqa: S101 (it runs)
    left = state.left.get(record.key)
    away = (*record.sight.nodes, *(left.nodes if left else ()), *need.excluded_nodes)
    named = tuple(name for name in nodes if name in need.only_nodes or not need.only_nodes)
    if nodes and not named:
        named = record.sight.nodes  # where it may go it does not want to: nowhere
    return replace(need, only_nodes=named or need.only_nodes, excluded_nodes=away)


def begin(
    state: State,
    event: MoveAsked | ResizeAsked,
    found: Placement,
    gpus: int = 0,
    size: int = 0,
) -> list[Command]:
    """Ask the job's node to save it; with `gpus` it is to own so many of each node there.

    With `size` it goes on with that many.
    """
    record = state.jobs[event.key]
    assert record.sight is not None  # noqa: S101 (target_for has looked)
    left = state.left.get(event.key)
    move = Saga(
        key=event.key,
        token=record.token,
        job_id=str(record.sight.number),
        number=left.number + 1 if left else 1,
        origin=record.sight.nodes,
        target=found.nodes,
        gpus=gpus,
        size=size,
        was=record.sight.gpus,
        forced=event.forced,
        asked_at_s=event.at_s,
        since_s=event.at_s,
        submitted_at_s=record.sight.submitted_at_s,
    )
    state.moves[move.key] = move
    state.left[move.key] = replace(
        left or Left(number=0), number=move.number, tried_at_s=event.at_s
    )
    to = ",".join(move.target) + (", as owner" if gpus else "")
    text = (
        f"is to train with {size} GPUs instead of {move.was}, on {to}" if size else f"moves to {to}"
    )
    _tell(state, move.key, event.at_s, f"{text}: {event.why}")
    return [_order(move)]


def call_off(state: State, move: Saga, at_s: float, why: str) -> None:
    """One that is still being saved stays as it is; one that has left is Slurm's again."""
    what = "stays" if move.stage is Stage.SAVING else "its move is given up"
    _end(state, move, at_s, f"{what}: {why}")


def saved(state: State, event: JobSaved) -> list[Command]:
    """It is on the shared filesystem, or it could not be."""
    move = next((one for one in state.moves.values() if one.job_id == event.job_id), None)
    if move is None or move.stage is not Stage.SAVING or move.number != event.number:
        return []
    record = state.jobs.get(move.key)
    if event.problem or record is None or record.phase is not Phase.RUNNING:
        why = event.problem or "it runs no more"
        _end(state, move, event.at_s, f"stays, it could not be saved: {why}")
        return []
    if not state.advising:
        _end(state, move, event.at_s, "stays: nothing is to be carried out any more")
        return []
    state.moves[move.key] = move.at(Stage.LEAVING, event.at_s)
    left = state.left.get(move.key) or Left(number=move.number)  # of an older journal
    state.left[move.key] = replace(left, at_s=event.at_s, nodes=move.origin)
    size = event.bytes_carried / 1e6
    how = " (no room on the ramdisk)" if event.spilled else ""
    text = f"saved, {size:.0f} MB in {event.seconds:.1f} s{how}: requeued"
    _tell(state, move.key, event.at_s, text)
    leave = _order(state.moves[move.key])
    if move.stays_here or record.sight is None:
        return [leave]
    # First: it is a line to a node, and what it asks for takes its time.
    uid, size_bytes = record.sight.uid, event.bytes_carried
    there = Prepare(move.token, move.job_id, move.target, uid, move.number, size_bytes)
    return [there, leave]


def seen(state: State, record: JobRecord, at_s: float) -> None:
    """Slurm shows the job: go on from where it is."""
    move = state.moves.get(record.key)
    if move is None:
        return
    if record.phase is Phase.ENDED:
        if _was_lost(move, record):
            state.moves[move.key] = move if move.lost else _found_again(move, at_s)
        else:
            _end(state, move, at_s, "its move ends with it")
        return
    left_behind = move.stage in (Stage.LEAVING, Stage.PLACING)
    if left_behind and record.phase in (Phase.COMPLETING, Phase.WAITING):
        state.moves[move.key] = replace(move, gone=True)
    if record.phase is Phase.RUNNING and left_behind and record.sight:
        if _is_back(move, record.sight):
            back = replace(move.at(Stage.LEAVING, at_s), gone=False, forgotten=True)
            state.moves[move.key] = back
            return
        if _has_not_left(move, record.sight):
            return  # not requeued yet, or refused: the deadline tells
        size = move.size or record.sight.gpus
        if record.sight.nodes == move.target and record.sight.gpus == size:
            state.moves[move.key] = move.at(Stage.RESTORING, at_s)
        else:
            where = ",".join(record.sight.nodes)
            held = f" with {record.sight.gpus} GPUs" if move.size else ""
            _end(state, move, at_s, f"Slurm started it on {where}{held} instead")


def controller_back(state: State) -> None:
    """It may have forgotten what it was asked for last; whoever asks again looks first."""
    for move in list(state.moves.values()):
        if move.stage is Stage.LEAVING:
            state.moves[move.key] = replace(move, forgotten=True)
        elif move.stage is Stage.PLACING and move.starts < _STARTS:
            state.moves[move.key] = replace(move, stage=Stage.LEAVING)


def _was_lost(move: Saga, record: JobRecord) -> bool:
    """Whether Slurm has taken what we asked of it for a failure of the job."""
    has_left = move.stage is not Stage.SAVING
    return has_left and record.sight is not None and record.sight.slurm_reason == LOST


def _found_again(move: Saga, at_s: float) -> Saga:
    """To be requeued once more. Where it had started already it waits for as long as Slurm says."""
    left = move.target if move.stage is Stage.RESTORING else move.origin
    back = replace(move, origin=left, gone=False, forgotten=True, lost=True)
    return back.at(Stage.LEAVING, at_s)


def _is_back(move: Saga, sight: JobSight) -> bool:
    """Whether Slurm takes the run that has left for one that is still there."""
    same = sight.nodes == move.origin and sight.submitted_at_s == move.submitted_at_s
    return move.gone and same


def _has_not_left(move: Saga, sight: JobSight) -> bool:
    """Whether this is still the run that is to leave."""
    if move.stage is not Stage.LEAVING or sight.nodes != move.origin:
        return False
    return not move.stays_here or sight.submitted_at_s == move.submitted_at_s


def starts(state: State, at_s: float) -> list[Command]:
    """Let those that have left start: their nodes are required by now.

    A start told while a job still completes is forgotten by Slurm.
    """
    commands: list[Command] = []
    for move in list(state.moves.values()):
        record = state.jobs.get(move.key)
        if move.forgotten and record and record.phase in (Phase.RUNNING, Phase.ENDED):
            state.moves[move.key] = replace(move, forgotten=False)
            _tell(state, move.key, at_s, "Slurm may have forgotten that it left: requeued again")
            commands.append(_order(move))
        elif move.stage is Stage.LEAVING and record and record.phase is Phase.WAITING:
            placing = replace(move.at(Stage.PLACING, at_s), starts=move.starts + 1)
            state.moves[move.key] = placing
            commands.append(_order(placing))
    return commands


def reported(state: State, report: NodeReported) -> None:
    """A node tells of trainings: one that was restored trains again."""
    for move in list(state.moves.values()):
        if move.stage is not Stage.RESTORING or report.node not in move.target:
            continue
        for job in report.jobs:
            if job.ref == move.job_id and job.minibatch and report.at_s > move.since_s:
                took_s = report.at_s - move.asked_at_s
                done = f"trains with {move.size} GPUs" if move.size else "moved"
                _end(state, move, report.at_s, f"{done}, {took_s:.1f} s in all")


def refused(state: State, event: CommandRefused) -> None:
    """Slurm or the node would not: before it has left nothing has happened.

    One that has left is told to start again when Slurm next shows it.
    """
    for move in list(state.moves.values()):
        if move.token != event.token or not event.concerns(move.key, move.job_id):
            continue
        record = state.jobs.get(move.key)
        advised = advice_key(event.token, event.task)
        if event.task is not None and record and record.advice_key != advised:
            continue  # advice for another task of its array
        if move.stage in (Stage.SAVING, Stage.LEAVING):
            _end(state, move, event.at_s, f"stays: {event.text}")
        elif move.stage is Stage.PLACING and move.starts < _STARTS:
            state.moves[move.key] = replace(move, stage=Stage.LEAVING)


def taken_up(state: State, at_s: float) -> list[Command]:
    """A scheduler is back: ask again for what each move waits for, unless it is too late for that.

    It may have been done: whoever carries these out looks first.
    """
    overdue(state, at_s)
    waiting = (one for one in state.moves.values() if one.stage is not Stage.RESTORING)
    return [_order(one) for one in waiting]


def overdue(state: State, at_s: float) -> None:
    """Stages that took too long: before the requeue it stays, after it Slurm starts it anywhere."""
    late = [one for one in state.moves.values() if due_at_s(one) <= at_s]
    texts = {
        Stage.SAVING: "stays: it was not saved in time",
        Stage.LEAVING: "its move is given up: it did not leave in time",
        Stage.PLACING: "its new nodes did not take it in time: Slurm starts it anywhere",
        Stage.RESTORING: "moved, but has not told of a mini-batch since",
    }
    for move in late:
        _end(state, move, at_s, texts[move.stage])


def due_at_s(move: Saga) -> float:
    """When the present stage has taken too long."""
    slurm_s = CRED_EXPIRE_S if move.stage is Stage.PLACING and move.stays_here else 0.0
    return move.since_s + PATIENCE_S[move.stage] + slurm_s


def _order(move: Saga) -> Command:
    """What a move waits for in its present stage."""
    if move.stage is Stage.SAVING:
        return Save(move.token, move.job_id, move.origin[0], move.number)
    if move.stage is Stage.LEAVING:
        return Requeue(move.token, move.key, move.number, move.submitted_at_s)
    return Start(
        move.token,
        move.key,
        move.number,
        move.target,
        move.gpus,
        move.size,
        at_once=not move.stays_here,
    )


def _end(state: State, move: Saga, at_s: float, text: str) -> None:
    state.moves.pop(move.key, None)
    _tell(state, move.key, at_s, text)


def _tell(state: State, key: str, at_s: float, text: str) -> None:
    if record := state.jobs.get(key):
        state.put(record.noted(at_s, text))


def _is_restorable(state: State, record: JobRecord) -> bool:
    """Whether its node says so of every process of it."""
    assert record.sight is not None  # noqa: S101 (stays has looked)
    reports = [state.reports[name] for name in record.sight.nodes if name in state.reports]
    told = [job for report in reports for job in report.jobs if job.ref == str(record.sight.number)]
    return (
        len(reports) == len(record.sight.nodes)
        and bool(told)
        and all(job.restorable for job in told)
    )
