# SPDX-License-Identifier: Apache-2.0
"""Flags: the client's C and the controller's Lua say the same of every value, word for word."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spank_build import build

if TYPE_CHECKING:
    from lua.conftest import Lua

pytestmark = pytest.mark.lua

TWINS = ("CLASS", "WEIGHT", "ELASTIC", "HINTS", "ROLES", "DATA", "NO_SHARE", "NO_MOVE")
GOOD = [
    *(("CLASS", word) for word in ("guaranteed", "shared", "opportunistic", "auto")),
    *(("WEIGHT", word) for word in ("1", "16")),
    *(("ELASTIC", word) for word in ("1-1", "2-8", "9-10", "4096-4096")),
    *(("HINTS", word) for word in ("model=resnet50,batch=64", "a=1", "lr=1e-3", "a_b=x/y:z+._-")),
    *(("ROLES", word) for word in ("ps:1,worker:4", "worker:1024")),
    *(("DATA", word) for word in ("/", "/data/a", "/a b/ü,/c=d", "/" + "x" * 255)),
    *(("NO_SHARE", word) for word in "01"),
    *(("NO_MOVE", word) for word in "01"),
]
BAD = [
    *(("CLASS", word) for word in ("", "Shared", "shared ", "best", "shared,auto")),
    *(("WEIGHT", word) for word in ("", "0", "17", "01", "1.5", "-1", "+1", "1 ", "99999999999")),
    *(("ELASTIC", word) for word in ("", "8", "8-2", "10-9", "0-1", "1-4097", "1-", "-1", "1-2-3")),
    *(("HINTS", word) for word in ("", "a", "a=", "=1", "A=1", "1=1", "a=1,", ",a=1", "a=1,a=2")),
    *(("HINTS", word) for word in ("a=b c", "a=b=c", "a=" + "x" * 65, "k" * 33 + "=1", "a=é")),
    *(
        ("ROLES", word)
        for word in ("", "ps", "ps:0", "ps:1025", "ps:1,ps:2", "Ps:1", "ps=1", "ps:")
    ),
    *(
        ("DATA", word)
        for word in ("", "data", "/a,", ",/a", "/a,b", "/a\nb", "/\x7f", "/" + "x" * 256)
    ),
    *(("NO_SHARE", word) for word in ("", "yes", "true", "01", "2")),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The client's side, compiled."""
    return build(tmp_path_factory.mktemp("spank"))


def sentence_of_c(library: ctypes.CDLL, twin: str, text: str) -> str | None:
    """What the C code says of a value; None if it is good."""
    why = ctypes.create_string_buffer(512)
    name = f"SLIPSTREAM_{twin}".encode()
    good = library.slip_check(TWINS.index(twin), name, text.encode(), why, len(why))
    return None if good else why.value.decode()


def sentence_of_lua(lua: Lua, twin: str, text: str) -> str | None:
    """What the Lua code says of it."""
    found = lua.ask("flag", twin=f"SLIPSTREAM_{twin}", text=text)
    assert found["good"] == (found["why"] is None)
    why: str | None = found["why"]
    return why


@pytest.mark.parametrize(("twin", "text"), GOOD)
def test_good_values_are_taken(
    interpreter: Lua, library: ctypes.CDLL, twin: str, text: str
) -> None:
    """On both sides."""
    assert sentence_of_lua(interpreter, twin, text) is None
    assert sentence_of_c(library, twin, text) is None


@pytest.mark.parametrize(("twin", "text"), BAD)
def test_bad_values_are_refused_with_the_good_answers(
    interpreter: Lua, library: ctypes.CDLL, twin: str, text: str
) -> None:
    """On both sides, in the same words, with what was written and without odd characters."""
    sentence = sentence_of_c(library, twin, text)
    assert sentence
    assert sentence.startswith(f"[slipstream] SLIPSTREAM_{twin}")
    assert sentence.isprintable()
    assert any(word in sentence for word in ("choose", "write", "longer than 256 bytes"))
    assert sentence_of_lua(interpreter, twin, text) == sentence


ALPHABET = st.sampled_from("abz019AZ_-=:,/. +\n\x7fé") | st.characters(
    exclude_characters="\0", exclude_categories=["Cs"]
)


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(twin=st.sampled_from(TWINS), text=st.text(ALPHABET, max_size=90))
def test_both_sides_agree_on_anything(
    interpreter: Lua, library: ctypes.CDLL, twin: str, text: str
) -> None:
    """Whatever a user may write."""
    assert sentence_of_lua(interpreter, twin, text) == sentence_of_c(library, twin, text)
