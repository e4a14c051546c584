# SPDX-License-Identifier: Apache-2.0
"""What a site can set: argument, then environment, then file, then default. Read once, at start.

A setting that is not known stops the daemon, with the known ones listed: it was meant to do
something.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from slipstream.core.classes import Mode
from slipstream.core.rules import Rules
from slipstream.scheduler.carriers import Carrier
from slipstream.slurm_plugin import Pace
from slipstream.slurm_plugin.link import address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFIX: Final = "SLIPSTREAM_SCHEDULER_"
_SHARED: Final = {
    "SLIPSTREAM_RUN_DIR": "run_dir",
    "SLIPSTREAM_STATE_DIR": "state_dir",
    "SLIPSTREAM_DISABLE_FILE": "disable_file",
    "SLIPSTREAM_CLUSTER": "cluster",
    "SLIPSTREAM_MUNGE_SOCKET": "munge_socket",
}
"""What other parts of Slipstream have to agree on has one name for all."""
FILE_VARIABLE: Final = "SLIPSTREAM_SCHEDULER_FILE"
DEFAULT_FILE: Final = Path("/etc/slipstream/scheduler.toml")


Shares: TypeAlias = tuple[tuple[str, float], ...]


class SettingsError(ValueError):
    """A setting that is unknown or has no such value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of them, with their defaults."""

    run_dir: Path = Path("/run/slipstream")
    state_dir: Path = Path("/var/lib/slipstream")
    disable_file: Path = Path("/etc/slipstream/disable")
    mode: Mode = Mode.OBSERVE
    carrier: Carrier = Carrier.AUTO
    """What carries advice out: the board, soft hold, or whichever can."""
    slurm_user: str = "slurm"
    """Who may submit requests and change the mode, besides root."""
    api_port: int = 0
    """Also on this port of loopback, for reading only; 0: only on the socket."""
    listen: str = ""
    """HOST:PORT for coordinators of other hosts, known by MUNGE; empty: only those of this one."""
    cluster: str = ""
    """Its name, for them; empty: as slurm.conf has it."""
    munge_socket: str = ""
    """Of munged; empty: as slurm.conf has it, else where libmunge looks."""
    tick_s: float = 0.2
    lease_s: float = 60.0
    arrival_s: float = 60.0
    guest_below_pct: float = 80.0
    """A GPU that is used more than that over 10 s takes no further guest."""
    uplink_mbps: float = 0.0
    """What a rack's uplink carries, in Mbit/s; 0: it does not count where jobs are placed."""
    guest_after_s: float = 300.0
    """An `auto` job that has waited so long for GPUs becomes a guest (mode enforce)."""
    requeue_pause_s: float = 60.0
    """How far apart requeues of one job are at least, whoever wants it elsewhere or resized."""
    grow_after_s: float = 120.0
    """After so long without a queue elastic jobs take GPUs that nobody uses (mode enforce)."""
    extend_from_s: float = 60.0
    """A job that has waited so long for others is given that, near its limit (mode enforce)."""
    shares: Shares = ()
    """Each account's part of the GPUs: guaranteed jobs own no more; none: no quotas."""
    poll_fastest_s: float = 0.25
    poll_changed_s: float = 2.0
    poll_slowest_s: float = 10.0
    poll_away_s: float = 10.0
    events_between_checkpoints: int = 50_000
    keep_checkpoints_s: float = 86_400.0
    """How long a durable copy is kept after Slurm has forgotten its job."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        if self.log_level not in _LEVELS:
            raise SettingsError(f"log_level is {self.log_level!r}, known: {list(_LEVELS)}")
        if not 0 <= self.api_port <= _LAST_PORT:
            raise SettingsError(f"api_port is {self.api_port}, it must be 0 to {_LAST_PORT}")
        if self.listen:
            try:
                address(self.listen)
            except ValueError as error:
                raise SettingsError(f"listen: {error}") from error
        for name in _ABOVE_0:
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} is {getattr(self, name):g}, it must be above 0")
        if min(self.keep_checkpoints_s, self.uplink_mbps) < 0:
            raise SettingsError("keep_checkpoints_s and uplink_mbps must be 0 or more")
        if self.events_between_checkpoints < 1:
            raise SettingsError("events_between_checkpoints must be at least 1")
        try:
            self.pace()
        except ValueError as error:
            raise SettingsError(f"the poll_*_s settings do not go together: {error}") from error

    def pace(self) -> Pace:
        """How often Slurm is asked."""
        return Pace(
            fastest_s=self.poll_fastest_s,
            changed_s=self.poll_changed_s,
            slowest_s=self.poll_slowest_s,
            away_s=self.poll_away_s,
        )

    def rules(self) -> Rules:
        """What decisions go by."""
        return Rules(
            mode=self.mode,
            lease_s=self.lease_s,
            arrival_s=self.arrival_s,
            shares=self.shares,
            guest_below_pct=self.guest_below_pct,
            uplink_mbps=self.uplink_mbps,
            guest_after_s=self.guest_after_s,
            requeue_pause_s=self.requeue_pause_s,
            grow_after_s=self.grow_after_s,
            extend_from_s=self.extend_from_s,
        )


_ABOVE_0: Final = (
    *("tick_s", "lease_s", "arrival_s", "guest_below_pct", "extend_from_s", "grow_after_s"),
    "requeue_pause_s",
)
_LEVELS: Final = ("debug", "info", "warning", "error")
_LAST_PORT: Final = 65_535


_Word = TypeVar("_Word", bound=StrEnum)


def _one_of(kind: type[_Word]) -> Callable[[str], _Word]:
    def read(value: str) -> _Word:
        try:
            return kind(value)
        except ValueError:
            known = [str(one) for one in kind]
            name = kind.__name__.lower()
            raise SettingsError(f"{name} is {value!r}, known: {known}") from None

    return read


def _shares(value: object) -> Shares:
    """A table in the file, `vision=2,speech=1` elsewhere; the order does not matter."""
    pairs: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        pairs = value.items()
    else:
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        pairs = [(name.strip(), part) for name, _, part in (word.partition("=") for word in words)]
    try:
        shares = tuple(sorted((name, float(part)) for name, part in pairs))
    except (TypeError, ValueError):
        raise SettingsError(f"shares is {value!r}, say: vision=2,speech=1") from None
    if wrong := [name for name, part in shares if not name or not 0 < part < math.inf]:
        raise SettingsError(f"shares of {wrong} must be above 0")
    return shares


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "Path": Path,
    "Mode": _one_of(Mode),
    "Carrier": _one_of(Carrier),
    "str": str,
    "int": int,
    "float": float,
    "Shares": _shares,
}


def names() -> tuple[str, ...]:
    """Every setting."""
    return tuple(field.name for field in fields(Settings))


def flag_of(name: str) -> str:
    """How a setting is written on a command line."""
    return "--" + name.replace("_", "-")


def load(
    given: Mapping[str, str], environment: Mapping[str, str], file: Path | None = None
) -> Settings:
    """The settings of this start. A file that was named must be there."""
    named = file or (Path(environment[FILE_VARIABLE]) if FILE_VARIABLE in environment else None)
    from_file = _from_file(named or DEFAULT_FILE, must_exist=named is not None)
    merged = {**from_file, **_from_environment(environment), **given}
    if unknown := sorted(set(merged) - set(names())):
        raise SettingsError(f"unknown scheduler settings {unknown}; known: {sorted(names())}")
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    return Settings(**{name: _value(name, value, kinds[name]) for name, value in merged.items()})


def _from_file(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        if must_exist:
            raise SettingsError(f"there is no {path}") from error
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} could not be read: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    shared = {name: environment[key] for key, name in _SHARED.items() if key in environment}
    own = {
        key.removeprefix(PREFIX).lower(): value
        for key, value in environment.items()
        if key.startswith(PREFIX) and key != FILE_VARIABLE
    }
    return {**shared, **own}


def _value(name: str, value: object, kind: str) -> Any:  # noqa: ANN401 (of that kind)
    try:
        return _READ[kind](value)
    except (TypeError, ValueError) as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"{name} is {value!r}, which is no {kind.lower()}") from error
