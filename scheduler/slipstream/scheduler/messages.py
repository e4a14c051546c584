# SPDX-License-Identifier: Apache-2.0
"""What other parts send us in JSON, as the core's data. Keys we do not know are for later versions.

Lua cannot tell an empty list from an empty table: what we do not use is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from slipstream.core.classes import JobClass, Mode, Per, Role
from slipstream.core.events import JobSaved, NodeReported
from slipstream.core.sights import Gpus, GpuUse, Measured, PackSeen, Request, Training
from slipstream.estimator import Clues
from slipstream.scheduler.marker import TOKEN

if TYPE_CHECKING:
    from slipstream.core.estimate import Estimate
    from slipstream.estimator import Estimator

MOST_LINE_BYTES: Final = 64 * 1024
MOST_ESTIMATED: Final = 16
"""GPUs of a node that Lua takes our word for."""
_MOST_GPUS: Final = 1_000_000
_Told = TypeVar("_Told")
_Value = TypeVar("_Value", str, int)


class MessageError(ValueError):
    """A message that was not understood; says where and why."""


class _Gpus(msgspec.Struct):
    per: Per
    count: int


class _Submission(msgspec.Struct):
    token: str
    uid: int
    job_class: JobClass = msgspec.field(name="class")
    role: Role
    gpus: _Gpus
    v: int = 1
    nodes: tuple[int | None, int | None] | None = None
    tasks: int | None = None
    cpus_per_task: int | None = None
    memory_mib: int | None = None
    partition: str | None = None
    name: str | None = None
    weight: int | None = None
    account: str | None = None
    time_limit_s: float | None = None
    script: str | None = None
    argv: Any = None
    hints: Any = None
    roles: Any = None
    elastic: Any = None
    share: bool | None = None
    move: bool | None = None


class _Gpu(msgspec.Struct):
    index: int
    uuid: str = ""
    use_pct: float = 0.0
    memory_used_mib: int = 0
    memory_mib: int = 0
    owner_job: str | int | None = None
    guest_jobs: list[str | int] = []
    takes_guests: bool = True


class _Guarantee(msgspec.Struct):
    alone_ms: float | None = None
    slowdown_pct: float | None = None
    error_pct: float | None = None


class _Training(msgspec.Struct):
    job_id: str | int
    phase: str = ""
    minibatch: int | None = None
    minibatch_ms: float | None = None
    import_s: float | None = None
    launch_s: float | None = None
    train_s: float | None = None
    save_s: float | None = None
    restorable: bool = False
    waited_s: float = 0.0
    parked_s: float = 0.0
    share_s: float = 0.0
    shared_s: float = 0.0
    restart: int | None = None
    began: int = 0
    resumed_at: int = 0
    unattached: str = ""
    share_pct: float | None = None
    cap_mib: int | None = None
    node_reason: str = ""
    turn_holder: int | None = None
    turn_since_s: float | None = None
    guarantee: _Guarantee | None = None
    measured: Measured | None = None


class _Pair(msgspec.Struct):
    jobs: list[str | int]
    rates: list[float]
    apart: bool = False


class _Saved(msgspec.Struct):
    job_id: str | int
    number: int
    bytes_carried: int = 0
    seconds: float = 0.0
    problem: str = ""
    spilled: bool = False


class _Mapped(msgspec.Struct):
    job_id: str | int
    files: list[str]


class _Discarded(msgspec.Struct):
    job_id: str | int
    token: str
    problem: str = ""


class _Call(msgspec.Struct):
    job_id: int
    runs: bool
    nodes: list[str]
    after: int = 0
    returns: bool = False


class _Report(msgspec.Struct):
    node: str
    at_s: float
    v: int = 1
    gpus: list[_Gpu] = []
    jobs: list[_Training] = []
    pairs: list[_Pair] = []
    enforces: bool = True
    mode: str = ""
    mode_at_most: str = ""
    ended: list[_Training] = []
    saved: _Saved | None = None
    """If it tells of a job that was saved; then of nothing else."""
    discarded: _Discarded | None = None
    """If it tells of a durable copy that was to be removed."""
    mapped: _Mapped | None = None
    """If it tells which files a job that is being saved has mapped."""
    calls: list[_Call] | None = None
    """If it tells whose turn it is among gangs that it leads."""
    listens: bool = False
    """If it waits on this connection for what it is asked to do."""


_MODES: Final = {str(mode): mode for mode in Mode}
_MOST_FILES: Final = 256
_MOST_NAME: Final = 4096

_SUBMISSION: Final = msgspec.json.Decoder(_Submission, strict=False)
_REPORT: Final = msgspec.json.Decoder(_Report, strict=False)
_ANSWER: Final = msgspec.json.Encoder()


def read_submission(line: bytes, estimator: Estimator) -> Request:
    """One request of job_submit, with what the job is thought to need."""
    clues = read_clues(line)
    return sized(clues.request, estimator.of(clues))


def read_clues(line: bytes) -> Clues:
    """One request of job_submit, and what else came with it."""
    told = _decoded(_SUBMISSION, line)
    if not TOKEN.fullmatch(told.token):
        raise MessageError(f"token {told.token!r} is not 16 hex digits")
    if not 0 <= told.gpus.count <= _MOST_GPUS:
        raise MessageError(f"gpus.count is {told.gpus.count}, it must be 0 to {_MOST_GPUS}")
    request = Request(
        token=told.token,
        job_class=told.job_class,
        role=told.role,
        gpus=Gpus(told.gpus.per, told.gpus.count),
        weight=told.weight or 1,
        shares=told.share is not False,
        moves=told.move is not False,
        elastic=_range(told.elastic),
        nodes_min=max(1, (told.nodes[0] if told.nodes else None) or 1),
        tasks=max(1, told.tasks or 1),
        cpus_per_task=max(1, told.cpus_per_task or 1),
        memory_mib_per_node=max(0, told.memory_mib or 0),
        partition=told.partition or "",
        uid=told.uid,
        account=told.account or "",
        name=told.name or "",
        # A Lua table has no order: by name, so that the same job is always the same request.
        roles=tuple(sorted((name, n) for name, n in _pairs(told.roles, int).items() if n > 0)),
    )
    return Clues(
        request=request,
        script=told.script or "",
        arguments=_arguments(told),
        hints=_pairs(told.hints, str),
        roles=_pairs(told.roles, int),
        account=told.account or "",
        time_limit_s=told.time_limit_s,
    )


def _arguments(told: _Submission) -> tuple[str, ...]:
    """What follows the script's name; without a script the command itself."""
    words = tuple(map(str, told.argv)) if isinstance(told.argv, list) else ()
    return words[1:] if told.script else words


def _pairs(told: object, kind: type[_Value]) -> dict[str, _Value]:
    """Lua's table of such values by name, which may also be an empty list."""
    pairs = told.items() if isinstance(told, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, kind)}


def _range(told: object) -> tuple[int, int] | None:
    """Least and most; what is none of that is not said."""
    match told:
        case [int(least), int(most)] if 0 < least <= most:
            return least, most
    return None


def sized(request: Request, estimate: Estimate) -> Request:
    """The request with its estimate; who asks for no GPUs and leaves it to us gets that many."""
    if request.job_class is not JobClass.AUTO or request.gpus.count:
        return replace(request, estimate=estimate)
    each = -(-max(1, estimate.gpus) // request.nodes_min)
    return replace(request, estimate=estimate, gpus=Gpus(Per.NODE, min(each, MOST_ESTIMATED)))


def answer(message: str = "", hold_s: int = 0, gpus: int = 0) -> bytes:
    """Our line to job_submit: a sentence for the user, and for how long the job may not start.

    For a job that left it to us also how many GPUs of each node it gets.
    """
    told = {"message": message, "hold_s": hold_s, "gpus": gpus}
    return _ANSWER.encode({"v": 1, **{key: one for key, one in told.items() if one}}) + b"\n"


@dataclass(frozen=True, slots=True)
class Listening:
    """A coordinator waits on its connection for what it is asked to do."""

    node: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """A node has removed the durable copy of a job, or could not."""

    node: str
    job_id: str
    token: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FilesMapped:
    """What the processes of a job that is being saved have mapped: its libraries, most of all."""

    node: str
    job_id: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TurnCalled:
    """The first node of a job across nodes says whether it runs now, for the others to follow."""

    job_id: int
    runs: bool
    after: int
    nodes: tuple[str, ...]
    returns: bool = False


@dataclass(frozen=True, slots=True)
class TurnsCalled:
    """All that a node leads."""

    node: str
    calls: tuple[TurnCalled, ...]


Told: TypeAlias = NodeReported | JobSaved | Discarded | TurnsCalled | FilesMapped


def read_told(line: bytes) -> Told | Listening:
    """One line of a coordinator."""
    told = _decoded(_REPORT, line)
    if told.listens:
        return Listening(told.node)
    if told.discarded is not None:
        gone = told.discarded
        return Discarded(told.node, str(gone.job_id), gone.token, gone.problem)
    if told.mapped is not None:
        files = tuple(name[:_MOST_NAME] for name in told.mapped.files[:_MOST_FILES])
        return FilesMapped(told.node, str(told.mapped.job_id), files)
    if told.calls is not None:
        calls = [
            TurnCalled(one.job_id, one.runs, one.after, (*one.nodes,), one.returns)
            for one in told.calls
        ]
        return TurnsCalled(told.node, tuple(calls))
    if told.saved is None:
        return _report(told)
    return JobSaved(
        at_s=told.at_s,
        node=told.node,
        job_id=str(told.saved.job_id),
        number=told.saved.number,
        bytes_carried=told.saved.bytes_carried,
        seconds=told.saved.seconds,
        problem=told.saved.problem,
        spilled=told.saved.spilled,
    )


def read_report(line: bytes) -> NodeReported:
    """One report of a coordinator."""
    return _report(_decoded(_REPORT, line))


def _report(told: _Report) -> NodeReported:
    gpus = tuple(
        GpuUse(
            index=gpu.index,
            uuid=gpu.uuid,
            use_pct=gpu.use_pct,
            memory_used_mib=gpu.memory_used_mib,
            memory_mib=gpu.memory_mib,
            owner_job=None if gpu.owner_job is None else str(gpu.owner_job),
            guest_jobs=tuple(map(str, gpu.guest_jobs)),
            takes_guests=gpu.takes_guests,
        )
        for gpu in told.gpus
    )
    jobs = tuple(map(_training, told.jobs))
    packed = tuple(
        PackSeen(tuple(map(str, one.jobs)), tuple(one.rates), apart=one.apart)
        for one in told.pairs
        if len(one.jobs) == len(one.rates)
    )
    return NodeReported(
        at_s=told.at_s,
        node=told.node,
        gpus=gpus,
        jobs=jobs,
        packed=packed,
        ended=tuple(map(_training, told.ended)),
        enforces=told.enforces,
        mode=_MODES.get(told.mode),
        mode_at_most=_MODES.get(told.mode_at_most),
    )


def _training(job: _Training) -> Training:
    kept = job.guarantee or _Guarantee()
    return Training(
        ref=str(job.job_id),
        phase=job.phase,
        minibatch=job.minibatch,
        minibatch_ms=job.minibatch_ms,
        import_s=job.import_s,
        launch_s=job.launch_s,
        train_s=job.train_s,
        save_s=job.save_s,
        restorable=job.restorable,
        waited_s=job.waited_s,
        parked_s=job.parked_s,
        share_s=job.share_s,
        shared_s=job.shared_s,
        restart=job.restart,
        began=job.began,
        resumed_at=job.resumed_at,
        unattached=job.unattached,
        share_pct=job.share_pct,
        cap_mib=job.cap_mib,
        node_reason=job.node_reason,
        turn_holder=job.turn_holder,
        turn_since_s=job.turn_since_s,
        alone_ms=kept.alone_ms,
        slowdown_pct=kept.slowdown_pct,
        slowdown_error_pct=kept.error_pct,
        measured=job.measured,
    )


def _decoded(decoder: msgspec.json.Decoder[_Told], line: bytes) -> _Told:
    # Users choose the bytes of names and scripts: those that are no UTF-8 must not cost the rest.
    text = line.decode(errors="replace")
    try:
        told = decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MessageError(f"{error}, in {line[:200]!r}") from error
    version = getattr(told, "v", 1)
    if version != 1:
        raise MessageError(f"version {version} of this message is not known, only 1")
    return told
