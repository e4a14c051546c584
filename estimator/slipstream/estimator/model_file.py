# SPDX-License-Identifier: Apache-2.0
"""Models as files: a few words in JSON and flat arrays behind them. Never a pickle.

    magic, version, length of the words, SHA-256 of all that follows · words · arrays

A file is written beside its place and renamed: whoever opens it finds all of it or the one before.
What is read is checked through and through, since a wrong index would be followed by C.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from slipstream.estimator.columns import Columns, Number
from slipstream.estimator.forest import NODE, Forest, ForestError
from slipstream.estimator.growth import Laws
from slipstream.estimator.labels import NAMES
from slipstream.estimator.model import QUANTILES, Model, Score, Sharing

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

MAGIC: Final = b"SLIPEST\n"
VERSION: Final = 3
DRAFT: Final = ".draft-"
_HEAD: Final = struct.Struct("<8sIQ32s")
_MOST_BYTES: Final = 256 << 20
_KINDS: Final[dict[str, np.dtype[Any]]] = {
    "<f8": np.dtype("<f8"),
    "<i4": np.dtype("<i4"),
    "|b1": np.dtype("?"),
    "node": NODE,
}


class ModelFileError(ValueError):
    """A file that is no model of ours; says why."""


class _Array(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    shape: tuple[int, ...]


class _Words(msgspec.Struct, forbid_unknown_fields=True):
    """All of a model that is no array."""

    labels: list[str]
    quantiles: list[float]
    family: str
    runs: int
    newest_s: float
    fitted_s: float
    numbers: list[Number]
    told: list[str]
    words: list[tuple[str, int]]
    constants: dict[str, float]
    closed: dict[str, list[int]]
    gpu_counts: list[int]
    scores: dict[str, Score]
    sharing: Sharing
    arrays: dict[str, _Array]


def path_of(folder: Path, family: str) -> Path:
    """Where the model of a family is: its name may hold anything."""
    return folder / f"{hashlib.sha256(family.encode(errors='replace')).hexdigest()[:24]}.model"


def write(model: Model, folder: Path) -> Path:
    """Put it in its place; a crash at any time leaves the one before."""
    arrays = {name: np.ascontiguousarray(get(model)) for name, get in _ARRAYS.items()}
    columns = model.columns
    words = _Words(
        labels=list(NAMES),
        quantiles=list(QUANTILES),
        family=model.family,
        runs=model.runs,
        newest_s=model.newest_s,
        fitted_s=model.fitted_s,
        numbers=list(columns.numbers),
        told=list(columns.told),
        words=list(columns.words),
        constants=dict(columns.constants),
        closed={name: list(words) for name, words in columns.closed.items()},
        gpu_counts=list(model.gpu_counts),
        scores=dict(model.scores),
        sharing=model.sharing,
        arrays={name: _Array(_kind(array), array.shape) for name, array in arrays.items()},
    )
    told = msgspec.json.encode(words)
    body = told + b"".join(array.tobytes() for array in arrays.values())
    head = _HEAD.pack(MAGIC, VERSION, len(told), hashlib.sha256(body).digest())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = path_of(folder, model.family)
    descriptor, name = tempfile.mkstemp(prefix=DRAFT, dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(head + body)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    return path


def read(path: Path) -> Model:
    """The model in a file; raises ModelFileError for whatever is wrong with it, else OSError."""
    if path.stat().st_size > _MOST_BYTES:
        raise ModelFileError(f"more than {_MOST_BYTES} bytes")
    return parse(path.read_bytes())


def parse(data: bytes) -> Model:
    """The model in these bytes."""
    if len(data) < _HEAD.size or not data.startswith(MAGIC):
        raise ModelFileError("not a model of slipstream")
    _, version, length, digest = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ModelFileError(f"of version {version}, this is {VERSION}")
    if hashlib.sha256(memoryview(data)[_HEAD.size :]).digest() != digest:
        raise ModelFileError("damaged: its checksum is wrong")
    try:
        words = msgspec.json.decode(data[_HEAD.size : _HEAD.size + length], type=_Words)
        return _model(words, _arrays(words, data, _HEAD.size + length))
    except (msgspec.MsgspecError, ForestError, UnicodeError, OverflowError) as error:
        raise ModelFileError(f"not understood: {error}") from error


def _arrays(words: _Words, data: bytes, at: int) -> dict[str, NDArray[Any]]:
    if list(words.arrays) != list(_ARRAYS):
        raise ModelFileError(f"has arrays {list(words.arrays)}")
    found = {}
    for name, one in words.arrays.items():
        kind = _KINDS.get(one.kind)
        if kind is None or any(size < 0 for size in one.shape):
            raise ModelFileError(f"array {name} is of kind {one.kind}")
        count = math.prod(one.shape)
        if at + count * kind.itemsize > len(data):
            raise ModelFileError(f"array {name} is longer than the file")
        found[name] = np.frombuffer(data, kind, count, at).reshape(one.shape).copy()
        at += count * kind.itemsize
    if at != len(data):
        raise ModelFileError("more than its arrays")
    return found


def _model(words: _Words, arrays: dict[str, NDArray[Any]]) -> Model:
    labels, numbers = len(NAMES), len(words.numbers)
    width = numbers + len(words.told) + len(words.words)
    terms, pairs = len(arrays["weights"]), len(arrays["pairs"])
    _expect(words.labels == list(NAMES) and words.quantiles == list(QUANTILES), "other labels")
    _expect(numbers >= 1 and all(one.floor > 0 for one in words.numbers), "no numbers")
    _expect(set(words.scores) <= set(NAMES), "scores of other labels")
    _expect(1.0 <= words.sharing.stretch < math.inf, "sharing that makes faster")
    shapes = {
        **dict.fromkeys(("centre", "spread", "low", "high", "far", "importance"), (width,)),
        **dict.fromkeys(("derived", "known", "least", "most", "blend", "leash"), (labels,)),
        "unsure": (labels,),
        "errors": (labels, len(QUANTILES)),
        "power": (labels, 1 + width + pairs),
        "exponents": (terms, numbers),
        "gates": (terms, 2),
        "pairs": (pairs, 2),
        "weights": (terms,),
        "laws": (labels + 1,),
        "first": (labels + 1,),
        "nodes": (len(arrays["nodes"]),),
        "roots": (len(arrays["roots"]),),
    }
    for name, shape in shapes.items():
        _expect(arrays[name].shape == shape, f"array {name} is of shape {arrays[name].shape}")
        _expect(_kind(arrays[name]) == _kind_of(name), f"array {name} is of another kind")
        if arrays[name].dtype.kind == "f" and name != "far":
            _expect(bool(np.isfinite(arrays[name]).all()), f"array {name} has no numbers")
    _expect(bool((arrays["spread"] > 0).all() and (arrays["far"] > 0).all()), "columns of no width")
    gates, laws = arrays["gates"], arrays["laws"]
    many = 2 + 2 * (width - numbers) + numbers
    _expect(bool(((gates >= 0) & (gates < many)).all()), "a gate that does not exist")
    _expect(bool(((arrays["pairs"] >= 0) & (arrays["pairs"] < width)).all()), "pairs of nothing")
    _expect(laws[0] == 0 and laws[-1] == terms and bool((np.diff(laws) >= 0).all()), "no laws")
    columns = Columns(
        numbers=tuple(words.numbers),
        told=tuple(words.told),
        words=tuple(words.words),
        **{name: arrays[name] for name in ("centre", "spread", "low", "high", "far")},
        constants=words.constants,
        closed={name: tuple(known) for name, known in words.closed.items()},
    )
    forest = Forest(arrays["nodes"], arrays["roots"], arrays["first"], width).checked()
    return Model(
        family=words.family,
        runs=words.runs,
        newest_s=words.newest_s,
        fitted_s=words.fitted_s,
        columns=columns,
        laws=Laws(
            *(arrays["exponents"], gates, arrays["weights"], laws, arrays["power"]),
            *(arrays["pairs"], arrays["blend"], arrays["leash"]),
        ),
        forest=forest,
        derived=arrays["derived"],
        known=arrays["known"],
        low=arrays["least"],
        high=arrays["most"],
        unsure=arrays["unsure"],
        errors=arrays["errors"],
        importance=arrays["importance"],
        gpu_counts=tuple(words.gpu_counts),
        scores=words.scores,
        sharing=words.sharing,
    )


_ARRAYS: Final[dict[str, Callable[[Model], NDArray[Any]]]] = {
    "centre": lambda model: model.columns.centre,
    "spread": lambda model: model.columns.spread,
    "low": lambda model: model.columns.low,
    "high": lambda model: model.columns.high,
    "far": lambda model: model.columns.far,
    "importance": lambda model: model.importance,
    "exponents": lambda model: model.laws.exponents,
    "weights": lambda model: model.laws.weights,
    "power": lambda model: model.laws.power,
    "blend": lambda model: model.laws.blend,
    "leash": lambda model: model.laws.leash,
    "pairs": lambda model: model.laws.pairs,
    "errors": lambda model: model.errors,
    "unsure": lambda model: model.unsure,
    "least": lambda model: model.low,
    "most": lambda model: model.high,
    "gates": lambda model: model.laws.gates,
    "laws": lambda model: model.laws.first,
    "roots": lambda model: model.forest.roots,
    "first": lambda model: model.forest.first,
    "derived": lambda model: model.derived,
    "known": lambda model: model.known,
    "nodes": lambda model: model.forest.nodes,
}
"""In the order in which they are in a file."""
_WHOLE: Final = frozenset({"gates", "pairs", "laws", "roots", "first"})


def _kind_of(name: str) -> str:
    if name == "nodes":
        return "node"
    if name in _WHOLE:
        return "<i4"
    return "|b1" if name in {"derived", "known"} else "<f8"


def _kind(array: NDArray[Any]) -> str:
    return "node" if array.dtype == NODE else array.dtype.str


def _expect(holds: bool, otherwise: str) -> None:  # noqa: FBT001 (a sentence follows it)
    if not holds:
        raise ModelFileError(otherwise)
