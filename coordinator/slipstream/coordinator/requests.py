# SPDX-License-Identifier: Apache-2.0
"""What is asked at the node socket and what is answered. Pure: text in, text out.

One line of `key=value` words comes in; lines of `env NAME=value` and `unset NAME` go out, closed by
`ok`; before all of them `wait`, if the asker knows that word: it came while others are answered.
Anything but that closing line makes the asker help itself, so a refusal is simply a sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = "1"
WAIT: Final = "wait\n"
OPERATIONS: Final = ("start", "block")
ROLES: Final = {"none": Role.NONE, "owner": Role.OWNER, "guest": Role.GUEST}
MAX_LINE_BYTES: Final = 4096
MAX_GPUS: Final = 16

_NUMBER = re.compile(r"[0-9]{1,10}")
_STEP = re.compile(r"batch|interactive|extern|[0-9]{1,10}")
_WORD = re.compile(r"[A-Za-z0-9_.-]{0,31}")
_SHORT_WORD = re.compile(r"[A-Za-z0-9_.-]{0,15}")
_NODES = re.compile(r"[A-Za-z0-9_.,\[\]-]{0,2048}")
_PATH = re.compile(r"[^\s=]*")


class RequestError(ValueError):
    """The line is not a request; says what was not understood and what would be."""


@dataclass(frozen=True, slots=True)
class Request:
    """A task of a job is about to start (`start`), or a process of it wants a page (`block`)."""

    operation: str
    job_id: int
    step: str
    uid: int
    task: int
    gpus: int = 0
    """How many GPUs the job gets on this node."""
    gpus_per_task: int = 0
    """How many of them are this task's own; 0: it sees all of them."""
    tasks_per_gpu: int = 0
    """How many tasks share a GPU of their own; 0: each has its own."""
    role: Role = Role.NONE
    class_name: str = ""
    token: str = ""
    python_path: str | None = None
    """The task's PYTHONPATH, if the asker told it."""
    nodes: str = ""
    """All nodes of the job, as Slurm writes them, if the asker told them."""
    waits: bool = False
    """Whether the asker has patience with whoever says that it is there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the task finds in its environment."""

    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


def parse(line: str) -> Request:
    """Read one line; keys that are not known are of a later version and are passed over."""
    words = dict(word.partition("=")[::2] for word in line.split())
    if words.get("v") != VERSION:
        raise RequestError(f"v={words.get('v')!r} is not understood, only v={VERSION}")
    operation = words.get("op", "")
    if operation not in OPERATIONS:
        raise RequestError(f"op={operation!r} is not understood, only {', '.join(OPERATIONS)}")
    role = words.get("role", "none")
    if role not in ROLES:
        raise RequestError(f"role={role!r} is not understood, only {', '.join(ROLES)}")
    return Request(
        operation=operation,
        job_id=_number(words, "job", least=1),
        step=_matching(words, "step", _STEP, "batch, interactive, extern or a number"),
        uid=_number(words, "uid"),
        task=_number(words, "task"),
        gpus=_number(words, "gpus", most=MAX_GPUS) if "gpus" in words else 0,
        gpus_per_task=_number(words, "gpus_per_task") if "gpus_per_task" in words else 0,
        tasks_per_gpu=_number(words, "tasks_per_gpu") if "tasks_per_gpu" in words else 0,
        role=ROLES[role],
        class_name=_matching(words, "class", _SHORT_WORD, "a word of at most 15 letters"),
        token=_matching(words, "token", _WORD, "a word of at most 31 letters"),
        python_path=_matching(words, "pythonpath", _PATH, "folders without spaces")
        if "pythonpath" in words
        else None,
        nodes=_matching(words, "nodes", _NODES, "a list of nodes"),
        waits=words.get("waits") == "1",
    )


def render(answer: Answer) -> str:
    """The answer's lines; a value with a line break in it would be two and is refused."""
    for name, value in answer.environment.items():
        if "\n" in name + value or "\0" in value:
            raise RequestError(f"{name}={value!r} cannot be told in one line")
    lines = [f"env {name}={value}" for name, value in sorted(answer.environment.items())]
    lines += [f"unset {name}" for name in answer.unset]
    return "\n".join([*lines, "ok", ""])


def _number(
    words: Mapping[str, str], key: str, *, least: int = 0, most: int = (1 << 32) - 1
) -> int:
    text = words.get(key, "")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise RequestError(f"{key}={text!r} is not a number from {least} to {most}")
    return int(text)


def _matching(words: Mapping[str, str], key: str, pattern: re.Pattern[str], meaning: str) -> str:
    text = words.get(key, "")
    if not pattern.fullmatch(text):
        raise RequestError(f"{key}={text!r} is not {meaning}")
    return text
