# SPDX-License-Identifier: Apache-2.0
"""Advice carried out without the select wrapper: by StartTime and ReqNodeList of pending jobs.

A job that must wait for its nodes, or is advised none for now, gets a start in the near future, its
lease, renewed for as long as the advice holds; nobody renews it if we die, and the job starts
anywhere. A job whose nodes have room is bound to them and may start at once. Both are written into
the job's marker (`hold=`, `bound=`), so that the next daemon knows which of a job's settings are
ours to take back, and a user's own --begin and --nodelist are left alone.

What this cannot do and the wrapper can: between the binding and the start (one scheduling pass) the
job is bound without an end. If every daemon dies just then *and* the nodes are lost to another
job, the job waits for exactly those nodes. See docs/advice-board.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slipstream.core.moves import CRED_EXPIRE_S
from slipstream.slurm_plugin.advice import Advice, Binding, token_of
from slipstream.slurm_plugin.errors import Kind, SlurmError
from slipstream.slurm_plugin.node_room import Room, need_of, room_of
from slipstream.slurm_plugin.records import each_task
from slipstream.slurm_plugin.requests import JobUpdate
from slipstream.slurm_plugin.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.slurm_plugin.identity import JobRef
    from slipstream.slurm_plugin.protocol import Slurm
    from slipstream.slurm_plugin.records import Job, Node

DEFAULT_LEASE_S: Final = 30
MOST_MARKER_BYTES: Final = 512

_MARKER: Final = re.compile(r"\[slipstream ([^\]]*)\]")
_OURS: Final = frozenset({"hold", "bound"})
_SAFE_S: Final = 2.0
_NOT_YET: Final = "BeginTime"
"""Slurm's reason of a job whose start lies ahead."""
_PASSING: Final = (Kind.WRONG_STATE, Kind.BUSY, Kind.UNREACHABLE, Kind.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Hold:
    """It shall not start before then, unless told otherwise."""

    start_at_s: int


@dataclass(frozen=True, slots=True)
class Bind:
    """It may start now, on exactly these nodes."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LetGo:
    """It may start anywhere: now, or at that date."""

    start_at_s: int = 0


Step = Hold | Bind | LetGo


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on both clocks: Slurm's starts are dates, advice ends on the clock of the boot."""

    now_s: float
    now_boot_s: float

    def date_of(self, boot_s: float) -> float:
        """The date at which the boot's clock will show that."""
        return self.now_s + boot_s - self.now_boot_s


@dataclass(frozen=True, slots=True)
class SoftHold:
    """Keeps pending jobs to their advice; call `tick` more often than `lease_s / 2`.

    `moment` must be read before jobs and nodes are.
    """

    slurm: Slurm
    lease_s: int = DEFAULT_LEASE_S

    def tick(
        self, said: Iterable[Advice], jobs: Iterable[Job], nodes: Iterable[Node], moment: Moment
    ) -> dict[JobRef, Step]:
        """Do what is due, and say what was done. A job that has started meanwhile is passed over.

        Any other refusal of Slurm's is raised, after every job has had its turn.
        """
        done: dict[JobRef, Step] = {}
        refused: list[SlurmError] = []
        wanted = tuple(said)
        # Of nobody anything is said: only what we have done is looked at, to take it back.
        touched = jobs if wanted else [job for job in jobs if _is_bound(job) or _is_held_by_us(job)]
        pending = [job for job in each_task(touched) if _is_ours(job)]
        for job, step in due_steps(wanted, pending, nodes, moment, self.lease_s):
            try:
                self.slurm.update(job.ref, update_for(job, step))
                done[job.ref] = step
            except SlurmError as error:
                if not _passes(job, error):
                    refused.append(error)
        if refused:
            raise refused[0]
        return done


def _passes(job: Job, error: SlurmError) -> bool:
    """The job has moved on since it was looked at, or Slurm is away: the next tick will see."""
    if error.gone or error.kind in _PASSING:
        return True
    # What 22.05 says when the nodes of a job that has started are to be emptied.
    return _is_bound(job) and error.kind is Kind.REFUSED


def due_steps(
    said: Iterable[Advice],
    pending: Iterable[Job],
    nodes: Iterable[Node],
    moment: Moment,
    lease_s: int,
) -> list[tuple[Job, Step]]:
    """What is due for each job, in the order of their numbers. Pure.

    Jobs bound earlier count as if they ran on their nodes, so that no room is given away twice.
    """
    holding = {(one.token, one.task_id): one for one in said if one.holds(moment.now_boot_s)}
    rooms = {node.name: room_of(node) for node in nodes}
    steps: list[tuple[Job, Step]] = []
    waiting: list[tuple[Job, Advice | None]] = []
    for job in sorted(pending, key=lambda job: (job.job_id, str(job.ref))):
        advice = _advice_for(job, holding)
        if _is_bound(job) and advice and _still_good(job, advice, rooms):
            _take(rooms, job, job.required_nodes)
        else:
            waiting.append((job, advice))
    for job, advice in waiting:
        step = _next_step(job, advice, rooms, moment, lease_s)
        if isinstance(step, Bind):
            _take(rooms, job, step.nodes)
        if step:
            steps.append((job, step))
    return steps


def update_for(job: Job, step: Step) -> JobUpdate:
    """The change that carries a step out, with the marker that says it is ours."""
    bound = () if _is_bound(job) else None  # None leaves the nodes as the user gave them
    match step:
        case Hold(start_at_s):
            comment = _with_words(job.admin_comment, {"hold": str(start_at_s)})
            return JobUpdate(start_at_s=start_at_s, required_nodes=bound, admin_comment=comment)
        case Bind(nodes):
            comment = _with_words(job.admin_comment, {"bound": "1"})
            return JobUpdate(start_at_s="now", required_nodes=nodes, admin_comment=comment)
        case LetGo(start_at_s):
            comment = _with_words(job.admin_comment, {})
            return JobUpdate(
                start_at_s=start_at_s or "now", required_nodes=bound, admin_comment=comment
            )


def _next_step(
    job: Job, advice: Advice | None, rooms: Mapping[str, Room], moment: Moment, lease_s: int
) -> Step | None:
    ours = _is_bound(job) or _is_held_by_us(job)
    if advice is None:
        return _let_go(job, moment) if ours else None
    if advice.nodes and _has_nodes_of_its_own(job):
        return _let_go(job, moment) if ours else None
    chosen = _with_room(job, advice, rooms)
    if not chosen and advice.binding is Binding.PREFER:
        return _let_go(job, moment) if ours else None
    held_for_s = 0.0
    if _is_held_by_us(job):
        held_for_s = (job.times.eligible_at_s or 0) - moment.now_s
    # ReqNodeList given to a job that has just started would shrink it to those nodes (22.05 to
    # 24.11): so only a job that cannot start meanwhile is bound, any other is held first.
    if chosen and held_for_s > _SAFE_S:
        return Bind(chosen)
    if held_for_s > max(lease_s / 2, _SAFE_S):
        return None
    until_s = min(moment.date_of(advice.until_boot_s), moment.now_s + lease_s)
    return Hold(max(int(until_s), _safe_at_s(job)))


def _let_go(job: Job, moment: Moment) -> LetGo:
    safe_at_s = _safe_at_s(job)
    return LetGo(safe_at_s) if safe_at_s > moment.now_s else LetGo()


def _safe_at_s(job: Job) -> int:
    """From when a job may start anywhere, also on the node that it left; 0 if it left none.

    Slurm lets a requeued job wait, and on that node it would be lost before. For one that moves the
    wait is cut short, for its new nodes alone.
    """
    return job.times.submitted_at_s + int(CRED_EXPIRE_S) if job.restarts else 0


def _with_room(job: Job, advice: Advice, rooms: Mapping[str, Room]) -> tuple[str, ...]:
    """As many of the advised nodes as the job needs, or none: ReqNodeList takes no more."""
    need = need_of(job)
    free = [node for node in advice.nodes if rooms.get(node, Room()).fits(need)]
    count = max(job.node_count, 1)
    return tuple(free[:count]) if len(free) >= count else ()


def _still_good(job: Job, advice: Advice, rooms: Mapping[str, Room]) -> bool:
    need = need_of(job)
    return set(job.required_nodes) <= set(advice.nodes) and all(
        rooms.get(node, Room()).fits(need) for node in job.required_nodes
    )


def _take(rooms: dict[str, Room], job: Job, nodes: Iterable[str]) -> None:
    for node in nodes:
        rooms[node] = rooms[node].less(need_of(job))


def _advice_for(job: Job, said: Mapping[tuple[str, int | None], Advice]) -> Advice | None:
    token = token_of(job.admin_comment) or ""
    task_id = job.array.task_id if job.array else None
    return said.get((token, task_id)) or said.get((token, None))


def _is_ours(job: Job) -> bool:
    """Pending, marked, and not to be started later by its user's own wish."""
    if job.state is not JobState.PENDING or job.held or not job.batch or job.het:
        return False
    if token_of(job.admin_comment) is None:
        return False
    if not _has_room_for_words(job.admin_comment):
        return False
    return job.reason != _NOT_YET or _is_held_by_us(job)


def as_its_user_left_it(job: Job) -> Job:
    """The job without the start and the nodes that are ours: a hold is no --begin of its user's."""
    if _is_held_by_us(job) and job.reason == _NOT_YET:
        job = replace(job, reason="Resources")
    return replace(job, required_nodes=()) if _is_bound(job) else job


def _has_nodes_of_its_own(job: Job) -> bool:
    return bool(job.required_nodes) and not _is_bound(job)


def with_word(comment: str, name: str, value: str) -> str:
    """The comment with this word in its marker, or without it if it has no value."""
    kept = {key: word for key, word in _words(comment).items() if key != name}
    words = " ".join(
        f"{key}={word}" for key, word in (kept | ({name: value} if value else {})).items()
    )
    *_, marker = _MARKER.finditer(comment)
    return f"{comment[: marker.start()]}[slipstream {words}]{comment[marker.end() :]}"


def _is_bound(job: Job) -> bool:
    return "bound" in _words(job.admin_comment)


def _is_held_by_us(job: Job) -> bool:
    return "hold" in _words(job.admin_comment)


def _words(comment: str) -> dict[str, str]:
    """The words of the marker that counts: the last."""
    if "[slipstream " not in comment:
        return {}
    markers = _MARKER.findall(comment)
    pairs = (word.partition("=") for word in (markers[-1].split(" ") if markers else ()))
    return {name: value for name, _, value in pairs}


def _with_words(comment: str, ours: Mapping[str, str]) -> str:
    """The comment with these words of ours in its marker, in place of any before."""
    *_, marker = _MARKER.finditer(comment)
    kept = [word for word in marker[1].split(" ") if word.partition("=")[0] not in _OURS]
    words = " ".join([*kept, *(f"{name}={value}" for name, value in ours.items())])
    return f"{comment[: marker.start()]}[slipstream {words}]{comment[marker.end() :]}"


def _has_room_for_words(comment: str) -> bool:
    *_, marker = _MARKER.finditer(_with_words(comment, {"hold": "9999999999"}))
    return len(marker[0].encode()) <= MOST_MARKER_BYTES
