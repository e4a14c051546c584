# SPDX-License-Identifier: Apache-2.0
"""Grow-shrink: jobs that said `--slip-elastic` take GPUs nobody uses, and give them back. Pure.

GPUs of a running job cannot change. So it is saved and requeued as for a move, and asks for another
number of them while it waits (slipstream.core.moving). The rules are those of the cluster's brain
(slipstream.core.cluster.elastic), held to what Slurm can do: where another node has the room it
starts there at once, on its own it waits as long as Slurm makes it.

Whoever is requeued for another reason while it has more than it asked for asks for that again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.core import moving
from slipstream.core.classes import Mode, Per, Role
from slipstream.core.commands import Resize
from slipstream.core.events import ResizeAsked
from slipstream.core.moves import Stage
from slipstream.core.placement import Need, Placement, Room, given, need_of, room_for, taken
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from slipstream.core.commands import Command
    from slipstream.core.mirror import Mirror
    from slipstream.core.planning import Round
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import JobSight, NodeSight, Request
    from slipstream.core.state import State

    Probe = Callable[[Need], Placement | Reason]

_AGAIN_S: Final = 60.0
"""After a change that Slurm has not shown yet."""
_LEAST_AWAY_S: Final = 5.0
"""Free to start anywhere in the second in which it left its node, a job would be lost there."""
_IN_LINE: Final = ("Resources", "Priority")
"""Slurm's reasons of those who would start if there were room."""
_MOST_HELPED: Final = 16
"""Waiting jobs of one round for which it is looked whose GPUs would do."""


def target_for(
    state: State,
    probe: Probe,
    left: Mapping[str, NodeSight],
    asked: ResizeAsked,
    pause_s: float | None = None,
) -> Placement | Reason:
    """Where a job would go on with so many GPUs, or why it does not."""
    key, gpus = asked.key, asked.gpus
    pause_s = state.rules.requeue_pause_s if pause_s is None else pause_s
    why = moving.stays(state, key, asked.at_s, pause_s, forced=asked.forced)
    if why is not None:
        return why
    record = state.jobs[key]
    request, sight = state.requests[record.token], record.sight
    need = need_of(replace(request, size=gpus), sight)
    if sight is None or need is None or not _is_handled(record, request):
        return Reason.SHAPE_NOT_HANDLED
    least, most = request.elastic or (0, 0)
    if gpus < 1 or not least <= gpus <= most:
        return Reason.NOT_ELASTIC
    if gpus == sight.gpus:
        return Reason.HAS_THAT_SIZE
    found = probe(moving.elsewhere(state, record, need))
    return found if isinstance(found, Placement) else _here(need, sight, left)


def wishes(
    state: State, mirror: Mirror, found: Round, at_s: float
) -> tuple[list[Command], float | None]:
    """Who grows and who shrinks now; and when it is to be looked again."""
    if not state.advising or state.slurm_away:
        state.idle_since_s = None
        return [], None
    commands, due_s = _changes(state, mirror, found, at_s)
    return commands + _back_to_what_they_asked_for(state, at_s), due_s


def _changes(
    state: State, mirror: Mirror, found: Round, at_s: float
) -> tuple[list[Command], float | None]:
    if state.mode is not Mode.ENFORCE:
        state.idle_since_s = None
        return [], None
    elastic = [record for record in state.jobs.values() if _may_change(state, record)]
    if found.unseated or any(_is_in_line(state, record) for record in state.jobs.values()):
        state.idle_since_s = None
        return _shrinks(state, mirror, found, elastic, at_s), None
    if not elastic:
        state.idle_since_s = None
        return [], None
    if state.idle_since_s is None:
        state.idle_since_s = at_s
    due_s = state.idle_since_s + state.rules.grow_after_s
    if due_s > at_s:
        return [], due_s
    return _grows(state, mirror, found.left, elastic, at_s), None


def _grows(
    state: State,
    mirror: Mirror,
    left: Mapping[str, NodeSight],
    elastic: Iterable[JobRecord],
    at_s: float,
) -> list[Command]:
    """Who has fewest GPUs takes those of its node that nobody is on."""
    commands: list[Command] = []

    def probe(need: Need) -> Placement | Reason:
        """Another node, with as many GPUs that nobody is on: guests are not disturbed for this."""
        found = mirror.probe(need, left, at_s)
        quiet = isinstance(found, Placement) and all(
            mirror.idle_gpus(name) >= found.seats_per_node for name in found.nodes
        )
        return found if quiet else Reason.NO_FREE_GPU

    for record in sorted(elastic, key=lambda one: (_held(one), one.since_s, one.key)):
        if len(state.moves) >= moving.MOST_AT_ONCE or record.sight is None:
            break
        (name,) = record.sight.nodes
        busy = {at for move in state.moves.values() for at in (*move.origin, *move.target)}
        if name in busy or name not in left:
            continue  # whose those GPUs will be is not known yet
        free = min(mirror.idle_gpus(name), left[name].gpus - left[name].gpus_used)
        most = (state.requests[record.token].elastic or (0, 0))[1]
        gpus = min(most, _held(record) + free)
        if gpus <= _held(record):
            continue
        asked = ResizeAsked(at_s=at_s, key=record.key, gpus=gpus, why="nobody waits for these GPUs")
        target = target_for(state, probe, left, asked, moving.BETWEEN_MOVES_S)
        if isinstance(target, Placement) and not busy.intersection(target.nodes):
            commands += moving.begin(state, asked, target, size=gpus)
    return commands


def _shrinks(
    state: State, mirror: Mirror, found: Round, elastic: Iterable[JobRecord], at_s: float
) -> list[Command]:
    """Those go back to what they asked for whose GPUs let somebody start who waits."""
    _call_off_growth(state, found, at_s)
    commands: list[Command] = []
    nodes = _once_they_have_left(state, found.left)
    grown = [one for one in elastic if _held(one) > state.requests[one.token].gpus.count]
    if not grown:
        return commands
    for need in _needs(state, found)[:_MOST_HELPED]:
        room = room_for(need, nodes)
        if not _is_enough(room, need):
            chosen = _who(state, mirror, found.left, nodes, need, grown, at_s)
            for record, target in chosen:
                if len(state.moves) >= moving.MOST_AT_ONCE:
                    return commands
                asked = _given_back(state, record, at_s)
                commands += moving.begin(state, asked, target, size=asked.gpus)
                nodes.update(_freed(nodes, record, target, asked.gpus))
                grown.remove(record)
            room = room_for(need, nodes)
        if isinstance(room, Room) and _is_enough(room, need):
            at = tuple(sorted(room.whole)[: len(room.shape.nodes)])
            nodes.update(taken(nodes, replace(room.shape, nodes=at), need.role))
    return commands


def _who(
    state: State,
    mirror: Mirror,
    left: Mapping[str, NodeSight],
    nodes: Mapping[str, NodeSight],
    need: Need,
    grown: Iterable[JobRecord],
    at_s: float,
) -> list[tuple[JobRecord, Placement]]:
    """One that has enough beyond what it asked for, else several; none if all are too few."""

    def probe(one: Need) -> Placement | Reason:
        return mirror.probe(one, left, at_s)

    able: list[tuple[JobRecord, Placement]] = []
    for record in sorted(grown, key=lambda one: (_held(one), one.since_s, one.key)):
        target = target_for(state, probe, left, _given_back(state, record, at_s))
        if isinstance(target, Placement):
            able.append((record, target))
    with_all = dict(nodes)
    several: list[tuple[JobRecord, Placement]] = []
    for record, target in able:
        size = state.requests[record.token].gpus.count
        alone = {**nodes, **_freed(nodes, record, target, size)}
        if _is_enough(room_for(need, alone), need):
            return [(record, target)]
        with_all.update(_freed(with_all, record, target, size))
        several.append((record, target))
        if _is_enough(room_for(need, with_all), need):
            return several
    return []


def _given_back(state: State, record: JobRecord, at_s: float) -> ResizeAsked:
    """It goes on with what its user asked for."""
    size = state.requests[record.token].gpus.count
    return ResizeAsked(at_s=at_s, key=record.key, gpus=size, why="another job needs the GPUs")


def _back_to_what_they_asked_for(state: State, at_s: float) -> list[Command]:
    """Who waits, and not by a change of ours, waits for no more than its user asked for."""
    commands: list[Command] = []
    for record in state.jobs.values():
        request = state.requests.get(record.token)
        if request is None or request.size <= request.gpus.count or record.key in state.moves:
            continue
        if record.phase is not Phase.WAITING or record.sight is None:
            continue
        if at_s - state.swapped.get(record.key, at_s - _AGAIN_S) < _AGAIN_S:
            continue
        state.swapped[record.key] = at_s
        commands.append(Resize(record.token, record.key, request.gpus.count))
    for command in commands:
        if isinstance(command, Resize):
            record = state.jobs[command.key]
            text = f"waits for {command.size} GPUs again, as its user asked"
            state.put(record.noted(at_s, text))
    return commands


def _call_off_growth(state: State, found: Round, at_s: float) -> None:
    """Who was to grow does not: it has not left yet, or others were given what it waits for."""
    seated = {one.record.key for one in found.verdicts if isinstance(one.found, Placement)}
    for move in list(state.moves.values()):
        waits = move.stage is Stage.PLACING and move.key not in seated
        waits = waits and at_s - move.since_s >= _LEAST_AWAY_S
        if move.grows and not move.forced and (waits or move.stage is Stage.SAVING):
            moving.call_off(state, move, at_s, "another job needs the GPUs")


def _once_they_have_left(state: State, left: Mapping[str, NodeSight]) -> dict[str, NodeSight]:
    """The nodes, with GPUs that shrinking jobs still hold as if they had given them back."""
    nodes = dict(left)
    for move in state.moves.values():
        record = state.jobs.get(move.key)
        if record is None or record.phase is not Phase.RUNNING or record.sight is None:
            continue
        if move.size and not move.grows and record.sight.nodes == move.origin:
            target = Placement(move.target, move.size, 1, 1)
            nodes.update(_freed(nodes, record, target, move.size))
    return nodes


def _freed(
    nodes: Mapping[str, NodeSight], record: JobRecord, target: Placement, size: int
) -> dict[str, NodeSight]:
    """A job's node without what it gives back."""
    assert record.sight is not None  # noqa: S101 (it runs)
    (name,) = record.sight.nodes
    node = nodes.get(name)
    if node is None:
        return {}
    gives = _held(record) - (size if target.nodes == record.sight.nodes else 0)
    return {name: replace(node, gpus_used=max(0, node.gpus_used - gives))}


def _needs(state: State, found: Round) -> list[Need]:
    """What those need who wait for GPUs, ours in the order of their turns, then all others."""
    needs = [
        need
        for verdict in found.verdicts
        if verdict.found is Reason.NO_FREE_GPU and verdict.record.key not in state.moves
        if (need := need_of(state.requests[verdict.record.token], verdict.record.sight))
    ]
    plain = [one for one in state.jobs.values() if not one.token and _is_in_line(state, one)]
    return needs + [_need_of_plain(one.sight) for one in plain if one.sight]


def _need_of_plain(sight: JobSight) -> Need:
    """Of a job that carries no marker: as Slurm shows it."""
    return Need(
        role=Role.OWNER,
        seats=sight.wants_gpus,
        spread=False,
        nodes=max(1, sight.wants_nodes),
        partitions=tuple(sight.partition.split(",")) if sight.partition else (),
        only_nodes=sight.required_nodes,
        excluded_nodes=sight.excluded_nodes,
    )


def _is_in_line(state: State, record: JobRecord) -> bool:
    """Whether it waits for GPUs, as Slurm sees it."""
    sight = record.sight
    if record.phase is not Phase.WAITING or sight is None or record.key in state.moves:
        return False
    return sight.slurm_reason in _IN_LINE and sight.wants_gpus > 0 and not sight.holds_for


def _is_enough(room: Room | Reason, need: Need) -> bool:
    return isinstance(room, Room) and len(room.whole) >= max(need.nodes, len(room.shape.nodes))


def _here(need: Need, sight: JobSight, left: Mapping[str, NodeSight]) -> Placement | Reason:
    """On the node it is on, beside what others hold there."""
    (name,) = sight.nodes
    node = left.get(name)
    if node is None:
        return Reason.NO_NODE_FITS
    without = replace(
        node,
        gpus_used=max(0, node.gpus_used - sight.gpus),
        cpus_used=max(0, node.cpus_used - need.tasks * need.cpus_per_task),
        memory_used_mib=max(0, node.memory_used_mib - need.memory_mib_per_node),
    )
    return given(replace(need, only_nodes=(name,)), {name: without}, (name,))


def _may_change(state: State, record: JobRecord) -> bool:
    """Whether it said that it may have more or fewer, and could."""
    request = state.requests.get(record.token)
    if request is None or request.elastic is None or record.key in state.moves:
        return False
    running = record.phase is Phase.RUNNING and record.sight is not None
    return running and len(record.sight.nodes) == 1 and _is_handled(record, request)  # type: ignore[union-attr]


def _is_handled(record: JobRecord, request: Request) -> bool:
    """Owners with GPUs per node; what is said of one task of an array would be said of all."""
    per_node = request.gpus.per is Per.NODE and request.gpus.count > 0
    return per_node and request.role is Role.OWNER and record.task is None


def _held(record: JobRecord) -> int:
    return record.sight.gpus if record.sight else 0
