# SPDX-License-Identifier: Apache-2.0
"""Our marker in a job's admin comment: who is owner and who is guest is read here, not guessed.

`[slipstream v=1 token=<16 hex> class=… role=… gpus=<per>:<n> weight=<n> …]`, written by Lua at
submission, behind whatever a site keeps there. Keys we do not know are for later versions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.sights import Gpus, Request

if TYPE_CHECKING:
    from slipstream.slurm_plugin import Job

MOST_BYTES: Final = 512
_MARKER: Final = re.compile(r"\[slipstream ([^\[\]]*)\]")
TOKEN: Final = re.compile(r"[0-9a-f]{16}")


class MarkerError(ValueError):
    """A marker that cannot be one of ours; quotes it."""


def words_of(admin_comment: str) -> dict[str, str] | None:
    """The marker's words; None for a job without one."""
    found = _MARKER.findall(admin_comment)
    if not found:
        return None
    marker = found[-1]  # the last one counts, as for the select wrapper
    if len(marker.encode()) > MOST_BYTES:
        raise MarkerError(f"a marker of more than {MOST_BYTES} bytes: {marker[:100]!r}…")
    pairs = [word.partition("=") for word in marker.split()]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise MarkerError(f"{wrong} without a value in marker [{marker}]")
    return {key: value for key, _, value in pairs}


def request_of(job: Job) -> Request | None:
    """What the job's user asked of us, as far as marker and job tell; None without a marker."""
    words = words_of(job.admin_comment)
    if words is None:
        return None
    try:
        per, _, count = words["gpus"].partition(":")
        request = Request(
            token=words["token"],
            job_class=JobClass(words["class"]),
            role=Role(words["role"]),
            gpus=Gpus(Per(per), int(count)),
            weight=int(words.get("weight", "1")),
            shares=words.get("share") != "no",
            moves=words.get("move") != "no",
            may_be_guest=words.get("guest") == "may",
            elastic=_range(words.get("elastic", "")),
            size=int(words.get("size", "0")),
            nodes_min=max(1, job.node_count),
            tasks=max(1, job.task_count),
            cpus_per_task=max(1, job.cpus // max(1, job.task_count)),
            memory_mib_per_node=job.memory_mib_per_node or 0,
            partition=job.partition,
            uid=job.uid,
            account=job.account,
            name=job.name,
        )
    except (KeyError, ValueError) as error:
        raise MarkerError(f"marker of job {job.ref} not understood: {words} ({error!r})") from error
    if words.get("v") != "1" or not TOKEN.fullmatch(request.token):
        raise MarkerError(f"marker of job {job.ref} is not v=1 with a token of 16 hex: {words}")
    return request


def _range(word: str) -> tuple[int, int] | None:
    """1-8; a ValueError for anything else but nothing."""
    least, _, most = word.partition("-")
    return (int(least), int(most)) if word else None
