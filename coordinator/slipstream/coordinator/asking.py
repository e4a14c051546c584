# SPDX-License-Identifier: Apache-2.0
"""Asking all processes of a job on this node for the same thing, at the same mini-batch.

Ranks that train together must stop after the same mini-batch: else one would wait in a collective
for another that stands still. They cannot agree by a collective, for one that stands still would
never come to it. So they are asked ahead of time, and if one was faster than the asking, again:
who stands still by then goes on, and all stop later, together.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.wire.control_block import Capability, Directive, Phase, Request, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.coordinator.blocks import Block
    from slipstream.coordinator.gangs import Together
    from slipstream.coordinator.seats import Seat

_AHEAD: Final = 2
_ATTEMPTS: Final = 8  # each asks four times as far ahead: the last for some hours, if need be
_MOST_AHEAD: Final = 1000
_STANDING: Final = (Phase.PAUSED, Phase.PARKED)


def ask(pages: Sequence[Block], directive: Directive) -> Directive:
    """Ask all pages of a job; returns what was asked in the end, armed and with its epoch."""
    for attempt in range(_ATTEMPTS):
        armed_for = 0 if directive.request == Request.NONE else _armed_for(pages, attempt)
        directive = replace(
            directive, epoch=directive.epoch + min(attempt, 1), armed_for_minibatch=armed_for
        )
        for page in pages:
            try:
                page.direct(directive)
            except OSError:
                page.directive = directive  # out of reach: to ask the others again helps nobody
        # A process that has not done that mini-batch yet reads the page before it has.
        if not armed_for or max(_refreshed(pages), default=0) < armed_for:
            break
    return directive


def ask_gang(pages: Sequence[Block], directive: Directive, how: Together) -> Directive:
    """The same for a job with ranks on other nodes, which stop after the mini-batch that is named.

    Once: to ask again would take the other nodes apart. One that was faster than the asking waits
    in its collective for those that stand still, until all go on.
    """
    armed_for = 0
    if directive.request != Request.NONE and not _all_stand(pages):
        armed_for = _ahead(pages, how.notice_s) if how.after is None else how.after
    directive = replace(directive, armed_for_minibatch=armed_for)
    for page in pages:
        try:
            page.direct(directive)
        except OSError:
            page.directive = directive
    return directive


def _ahead(pages: Sequence[Block], notice_s: float) -> int:
    """The mini-batch that the foremost will have done by then; 0 if none trains."""
    done = _refreshed(pages)
    longest_ns = max((page.progress.minibatch_ns for page in pages if _trains(page)), default=0)
    count = notice_s * 1e9 / longest_ns if longest_ns > 0 else 0
    return max(done) + min(max(_AHEAD, math.ceil(count)), _MOST_AHEAD) if done else 0


def _all_stand(pages: Sequence[Block]) -> bool:
    """Whether all that train stand after the same one; a batch script has a page and no phase."""
    done = _refreshed(pages)
    standing = [page.progress.phase in _STANDING for page in pages if _trains(page)]
    return len(set(done)) == 1 and all(standing)


def why_not_rebind(seat: Seat | None, pages: Sequence[Block]) -> str:
    """Why a job cannot be asked to go to other GPUs of its node; empty if it can."""
    if seat is None:
        return "the job is not here"
    if seat.role != Role.GUEST:
        return "its GPUs are Slurm's to give"
    training = [page for page in pages if _trains(page)]
    if not training:
        return "none of its processes trains"
    if any(len(page.identity.gpu_uuids) < len(seat.gpu_uuids) for page in training):
        return "its tasks have GPUs of their own"  # all would be sent to the same ones
    if not all(page.progress.capabilities & Capability.REBINDABLE for page in training):
        return "not all of its processes can be begun anew"
    return ""


def heard(pages: Sequence[Block]) -> bool:
    """Whether all that train have come to the mini-batch they were asked for something at."""
    return all(
        page.progress.directive_epoch == page.directive.epoch
        and page.progress.minibatches >= page.directive.armed_for_minibatch
        for page in pages
        if _trains(page)
    )


def stand_apart(pages: Sequence[Block], directive: Directive) -> bool:
    """Whether ranks were stopped after different mini-batches, and so will not come together.

    A page that came too late, or a coordinator killed half-way.
    """
    if not any(page.progress.phase in _STANDING for page in pages):
        return False
    done = [page.progress.minibatches for page in pages if _trains(page)]
    last, foremost = min(done, default=0), max(done, default=0)
    return foremost == last + 1 and last >= directive.armed_for_minibatch


def _armed_for(pages: Sequence[Block], attempt: int) -> int:
    """A mini-batch that none of them has reached; 0, at once, if they do not train together.

    Ranks are never more than one apart at one moment. Pages are read one after the other: the
    foremost of a first reading is at most one ahead of the last of a second.
    """
    first, second = _refreshed(pages), _refreshed(pages)
    if _all_stand(pages):
        return 0  # they stand still after the same one: nobody goes on for this
    if len(second) < 2 or max(first, default=0) > min(second) + 1:  # noqa: PLR2004 (two are ranks)
        return 0
    return max(second) + (_AHEAD << 2 * attempt)


def _refreshed(pages: Sequence[Block]) -> list[int]:
    """The mini-batches done by those that train, now."""
    for page in pages:
        with contextlib.suppress(OSError):
            page.refresh()
    return [page.progress.minibatches for page in pages if _trains(page)]


def _trains(page: Block) -> bool:
    return page.progress.minibatches > 0 and page.progress.phase != Phase.ENDED
