# SPDX-License-Identifier: Apache-2.0
"""What of a submission may tell what the job needs: numbers and categories by name. Pure.

Names begin with where they are from: `ask.` what is asked of Slurm and of us, `hint.` --slip-hints,
`env.` variables the script sets, `launch.` options of srun, torchrun and their like, `arg.` options
of the program itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from slipstream.core.placement import need_of
from slipstream.estimator.shell import MOST_SCRIPT, Command, main_command
from slipstream.estimator.values import MOST_WORD, category_of, holds_secret, name_of, number_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from slipstream.core.sights import Request

# A hostile script must not fill the memory: together these bound what one job leaves.
_MOST_HINTS: Final = 16
_MOST_ENVIRONMENT: Final = 32
_MOST_LAUNCH_WORDS: Final = 64
_MOST_ARGUMENTS: Final = 128
MOST_FEATURES: Final = (
    16 + 2 * _MOST_HINTS + _MOST_ENVIRONMENT + _MOST_LAUNCH_WORDS + _MOST_ARGUMENTS
)
_LAUNCHERS: Final = ("accelerate", "deepspeed", "torchrun", "srun", "mpirun", "python")
"""The one that says most about a job first."""
_LAUNCHER_MODULES: Final = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
)
_OPTION: Final = re.compile(r"-{1,2}[A-Za-z_]")
_NAMED: Final = re.compile(r"\+*([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
"""lr=0.1, as Hydra and many a hand-written parser have it."""
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What is known of a job when it is submitted."""

    request: Request
    script: str = ""
    arguments: tuple[str, ...] = ()
    """Of the script; without a script the command itself."""
    hints: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, int] = field(default_factory=dict)
    """So many tasks of each: ps, worker."""
    account: str = ""
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What an estimate is made from.

    `family` names the runs that are most like it: the same program of the same user.
    """

    family: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def categories(self) -> dict[str, int]:
        """The words as they may be stored: not to be read by anybody."""
        return {name: category_of(word) for name, word in self.words.items()}


def read(clues: Clues) -> Features:
    """The features of a job; never raises, whatever its script is."""
    if clues.script:
        command = main_command(clues.script[:MOST_SCRIPT], clues.arguments)
    else:
        command = Command(clues.arguments)
    launch, program, arguments = _taken_apart(command.words)
    found = _Found()
    found.ask(clues)
    found.put_all("hint.", islice(clues.hints.items(), _MOST_HINTS))
    found.put("launcher", _launcher(launch))
    found.put_all("arg.", _options(arguments[:_MOST_ARGUMENTS]))
    found.put_all("launch.", _options(launch[:_MOST_LAUNCH_WORDS], by_place=False))
    found.put_all("env.", islice(command.environment.items(), _MOST_ENVIRONMENT))
    known_by = program or _DIGITS.sub("#", clues.request.name[:MOST_WORD])
    found.words["program"] = "" if holds_secret(known_by) else known_by
    family = f"{clues.request.uid}/{found.words['program']}"
    return Features(family=family, numbers=found.numbers, words=found.words)


class _Found:
    """Features under way."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.words: dict[str, str] = {}

    def ask(self, clues: Clues) -> None:
        """What is asked of Slurm and of us."""
        request = clues.request
        need = need_of(request)
        self.numbers.update(
            {
                "ask.gpus": need.seats_in_all if need else request.gpus.count,
                "ask.nodes": request.nodes_min,
                "ask.tasks": request.tasks,
                "ask.cpus_per_task": request.cpus_per_task,
            }
        )
        if request.memory_mib_per_node:
            self.numbers["ask.memory_mib_per_node"] = request.memory_mib_per_node
        if clues.time_limit_s is not None:
            self.numbers["ask.time_limit_s"] = clues.time_limit_s
        self.words.update({"ask.class": request.job_class, "ask.role": request.role})
        self.words["ask.user"] = str(request.uid)
        self.put("ask.account", clues.account)
        self.put("ask.partition", request.partition)
        for name, count in islice(clues.roles.items(), _MOST_HINTS):
            self.put(f"ask.role.{name_of(name)}", str(count))

    def put_all(self, source: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Values by name, from one source."""
        for text, value in pairs:
            if name := name_of(text):
                self.put(source + name, value)

    def put(self, name: str, value: str) -> None:
        """One value, as what it is."""
        if not value or len(value) > MOST_WORD:
            return
        number = number_of(value)
        if number is not None:
            self.numbers[name] = number
        elif not holds_secret(value):
            self.words[name] = value


def _taken_apart(words: Sequence[str]) -> tuple[Sequence[str], str, Sequence[str]]:
    """Launchers with their options, the program, its arguments."""
    for at, word in enumerate(words):
        after = words[at + 1] if at + 1 < len(words) else ""
        if word.endswith(".py"):
            return words[:at], _base(word), words[at + 1 :]
        if word == "-m" and after and after not in _LAUNCHER_MODULES:
            return words[:at], after[:MOST_WORD], words[at + 2 :]
        if word == "-c" and after and _base(words[at - 1]).startswith("python"):
            return words[:at], "python -c", ()
    return ((), _base(words[0]), words[1:]) if words else ((), "", ())


def _launcher(words: Sequence[str]) -> str:
    names = {_base(word) for word in words}
    if not _LAUNCHER_MODULES.isdisjoint(words):
        names.add("accelerate" if "accelerate.commands.launch" in words else "torchrun")
    return next((one for one in _LAUNCHERS if any(name.startswith(one) for name in names)), "")


def _options(words: Sequence[str], *, by_place: bool = True) -> Iterator[tuple[str, str]]:
    """Options with their values, switches with "true", and by their place the other words."""
    place, at = 0, 0
    while at < len(words):
        word = words[at]
        at += 1
        if _OPTION.match(word):
            name, equals, value = word.partition("=")
            if not equals:
                value = "true"
                if at < len(words) and not _OPTION.match(words[at]):
                    value = words[at]
                    at += 1
            yield name, value
        elif named := _NAMED.fullmatch(word):
            yield named[1], named[2]
        elif by_place:
            yield str(place), word
            place += 1


def _base(path: str) -> str:
    return path.rpartition("/")[2][:MOST_WORD]
