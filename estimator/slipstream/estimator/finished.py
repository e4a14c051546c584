# SPDX-License-Identifier: Apache-2.0
"""What the coordinators of a job's nodes measured, put together into one run. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from slipstream.estimator.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from slipstream.core.sights import Measured
    from slipstream.estimator.history import Asked

_Number = TypeVar("_Number", int, float)


def run_of(key: str, ended_s: float, asked: Asked, nodes: Collection[Measured]) -> Run | None:
    """The run, or None of a job that never trained: it tells nothing of what such jobs need.

    Of one that was ended from outside its times are not known: it would have run on.
    """
    ranks = sum(one.ranks for one in nodes)
    gpus = sum(one.gpus for one in nodes)
    if not ranks or not gpus:
        return None
    finished = all(one.finished for one in nodes if one.ranks)
    lived_s = _of(max, (one.lived_s for one in nodes)) or None
    cpu_s = sum(one.cpu_s for one in nodes)
    mean, spread = _use(nodes)
    return Run(
        key=key,
        ended_s=ended_s,
        family=asked.family,
        numbers=asked.numbers,
        categories=asked.categories,
        alone=all(one.alone for one in nodes),
        gpus=gpus,
        gpu_memory_mib=_of(max, (one.gpu_memory_mib for one in nodes)),
        gpu_use_pct=mean,
        gpu_use_spread_pct=spread,
        network_mbps=_network(nodes),
        cpus=max(1, ceil(cpu_s / lived_s)) if lived_s else None,
        host_memory_mib=_of(max, (one.host_memory_mib for one in nodes)),
        run_s=lived_s if finished else None,
        launch_s=_of(max, (one.launch_s for one in nodes)),
        train_s=_of(max, (one.train_s for one in nodes)) if finished else None,
        save_s=_of(max, (one.save_s for one in nodes)) if finished else None,
        minibatch_ms=_of(max, (one.minibatch_ms for one in nodes)),
        minibatches=_of(min, (one.minibatches for one in nodes)),
        nodes=len(nodes),
        ranks=ranks,
        cpu_s=round(cpu_s, 2),
        sent_mib=_sum(one.sent_mib for one in nodes),
        device_s=round(sum(one.busy_s for one in nodes) / gpus, 3),
    )


def with_earlier(run: Run, starts: Sequence[Collection[Measured]], again: int) -> Run:
    """The run with what earlier starts did, from which the last one went on.

    `again` are the mini-batches that were not in the checkpoint and were done once more: such a job
    needs them once.
    """
    if not starts:
        return run
    before = [_took(nodes) for nodes in starts]
    minibatches = None
    if run.minibatches is not None:
        minibatches = max(0, run.minibatches + sum(one.minibatches for one in before) - again)
    gpus = max(1, run.gpus)
    return replace(
        run,
        run_s=_more(run.run_s, (one.lived_s for one in before)),
        train_s=_more(run.train_s, (one.train_s for one in before)),
        save_s=_more(run.save_s, (one.save_s for one in before)),
        minibatches=minibatches,
        cpu_s=_more(run.cpu_s, (one.cpu_s for one in before)),
        device_s=_more(run.device_s, (one.busy_s / gpus for one in before)),
    )


class _Took(NamedTuple):
    """One start on all its nodes."""

    lived_s: float
    train_s: float
    save_s: float
    minibatches: int
    cpu_s: float
    busy_s: float


def _took(nodes: Collection[Measured]) -> _Took:
    return _Took(
        max((one.lived_s for one in nodes), default=0.0),
        _of(max, (one.train_s for one in nodes)) or 0.0,
        _of(max, (one.save_s for one in nodes)) or 0.0,
        _of(min, (one.minibatches for one in nodes)) or 0,
        sum(one.cpu_s for one in nodes),
        sum(one.busy_s for one in nodes),
    )


def _more(known: float | None, more: Iterable[float]) -> float | None:
    return None if known is None else round(known + sum(more), 3)


def _of(
    choose: Callable[[list[_Number]], _Number], values: Iterable[_Number | None]
) -> _Number | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else round(sum(value or 0.0 for value in known), 3)


def _network(nodes: Collection[Measured]) -> float | None:
    """What each node sent; one node alone has nobody to talk to, whatever it sent to others."""
    if len(nodes) == 1:
        return 0.0
    known = [one.network_mbps for one in nodes if one.network_mbps is not None]
    return round(fmean(known), 3) if len(known) == len(nodes) else None


def _use(nodes: Collection[Measured]) -> tuple[float | None, float | None]:
    """The mean over all GPUs, and the spread over all their samples."""
    known = [(one.gpu_use_pct, one.gpu_use_spread_pct or 0.0, one.gpus) for one in nodes]
    used = [(mean, spread, gpus) for mean, spread, gpus in known if mean is not None and gpus]
    if not used:
        return None, None
    gpus = sum(count for _, _, count in used)
    mean = sum(one * count for one, _, count in used) / gpus
    squares = sum((spread**2 + one**2) * count for one, spread, count in used) / gpus
    return round(mean, 2), round(sqrt(max(0.0, squares - mean**2)), 2)
