# SPDX-License-Identifier: Apache-2.0
"""Estimates for users who ask before they submit: models and history are not theirs to read.

They send what was read from their script, as a submission does; the script itself stays with them.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from slipstream.core.answers import estimated
from slipstream.estimator import Features

if TYPE_CHECKING:
    from slipstream.estimator import Estimator

MOST_CHARACTERS: Final = 16_000
_MOST_NAMES: Final = 200
_MOST_WORD: Final = 300


class NotUnderstoodError(ValueError):
    """What was sent are no features; says why."""


class _Sent(msgspec.Struct):
    family: str
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}


def features_of(text: str, uid: int | None, trusted: frozenset[int]) -> Features:
    """Features as they were sent; another user's family is nobody's, but to operators.

    Raises NotUnderstoodError.
    """
    if len(text) > MOST_CHARACTERS:
        raise NotUnderstoodError(f"at most {MOST_CHARACTERS} characters")
    try:
        sent = msgspec.json.decode(text, type=_Sent)
    except msgspec.MsgspecError as error:
        raise NotUnderstoodError(str(error)) from error
    if max(len(sent.numbers), len(sent.words)) > _MOST_NAMES:
        raise NotUnderstoodError(f"at most {_MOST_NAMES} of a kind")
    names = (*sent.numbers, *sent.words, *sent.words.values(), sent.family)
    if any(len(one) > _MOST_WORD for one in names):
        raise NotUnderstoodError(f"a name or word has more than {_MOST_WORD} characters")
    if not all(map(math.isfinite, sent.numbers.values())):
        raise NotUnderstoodError("numbers are finite")
    own = uid in trusted or sent.family.startswith(f"{uid}/")
    return Features(family=sent.family if own else "", numbers=sent.numbers, words=sent.words)


def answer(estimator: Estimator, features: Features) -> dict[str, Any]:
    """For programs."""
    found = estimator.estimate(features)
    return {**asdict(found), "text": estimated(found)}
