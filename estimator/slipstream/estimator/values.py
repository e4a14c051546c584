# SPDX-License-Identifier: Apache-2.0
"""Names and values of options as features: numbers, categories, and what is never kept. Pure."""

from __future__ import annotations

import math
import re
import zlib
from functools import lru_cache
from typing import Final

MOST_NAME: Final = 48
MOST_WORD: Final = 128
"""What is longer is data, not a choice somebody made."""

_STARTS_A_NUMBER: Final = frozenset("+-.0123456789")
_SWITCHES: Final = {"true": 1.0, "yes": 1.0, "on": 1.0, "false": 0.0, "no": 0.0, "off": 0.0}
_INNER_NAME: Final = re.compile(r"(?<![\w.-])([\w.-]+)[\"']?\s*[=:]")
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9_.]+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# By the end of a part of the name: HF_TOKEN, apiKey and dbpassword are meant, tokenizer and
# num_tokens are not. Too much rather than too little: what is dropped only makes a guess worse.
_SECRET: Final = re.compile(
    r"(?:token|keys?|passw(?:or)?ds?|passphrase|pwd|pass|secrets?|credentials?|creds?|auth|cookies?"
    r"|bearer|signature|pin|otp|dsn|webhook)(?:_|\d|\.|$)"
)


def name_of(text: str) -> str:
    """One spelling for --batch-size, --batch_size and batchSize.

    Empty for what is no name, and for what may be the name of a secret: its values are not kept in
    any form.
    """
    return _named(text) if len(text) <= MOST_NAME else ""


@lru_cache(maxsize=4096)  # people use few names, and the submit path has little time
def _named(text: str) -> str:
    name = _NOT_IN_A_NAME.sub("_", _HUMP.sub("_", text).lower()).strip("_.")
    return "" if _SECRET.search(name) else name


def holds_secret(value: str) -> bool:
    """Whether a value is `HF_TOKEN=…`, `{"api_key": …}`, `https://me:password@host` or the like."""
    if "=" not in value and ":" not in value:
        return False
    return ("://" in value and "@" in value) or not all(map(name_of, _INNER_NAME.findall(value)))


def number_of(text: str) -> float | None:
    """The number that a text is, or None."""
    if text[:1] not in _STARTS_A_NUMBER:
        return _SWITCHES.get(text.lower())
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def category_of(word: str) -> int:
    """The same number for the same word in every process and on every machine, below 2³²."""
    return zlib.crc32(word.encode(errors="replace"))
