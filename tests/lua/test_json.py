# SPDX-License-Identifier: Apache-2.0
"""Our JSON and Python's agree, on what is JSON and on what is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from lua.conftest import Lua

pytestmark = pytest.mark.lua

QUICK = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def without_surrogates(value: object) -> bool:
    """Whether a value can be written as UTF-8 at all."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@QUICK
@given(value=VALUES.filter(without_surrogates))
def test_what_is_read_is_written_again(interpreter: Lua, value: object) -> None:
    """Through both directions, bare and escaped characters alike."""
    echoed = interpreter.ask("echo", value=[value])["value"]
    assert echoed == [value]
    text = json.dumps(value, ensure_ascii=False).encode().hex()
    decoded = interpreter.ask("decode", hex=text)
    assert decoded["why"] is None
    assert decoded["value"] == value


@QUICK
@given(text=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(interpreter: Lua, text: bytes) -> None:
    """Never an error, and nothing is read that Python would refuse."""
    decoded = interpreter.ask("decode", hex=text.hex())
    if decoded["why"] is None and text.isascii():
        json.loads(text)


@QUICK
@given(text=st.binary(max_size=200))
def test_bytes_that_are_no_text_are_written_as_text(interpreter: Lua, text: bytes) -> None:
    """The daemon can read every line we send: what is not UTF-8 becomes U+FFFD."""
    written: dict[str, Any] = interpreter.ask("encode_bytes", hex=text.hex())
    found: str = written["value"]
    if found.isascii():
        assert found.encode() == text
    assert found.replace("\ufffd", "") == text.decode(errors="replace").replace("\ufffd", "")


@pytest.mark.parametrize(
    "text",
    ["", " ", "tr", "[1,]", '{"a"}', '{"a":1,}', "{1:2}", '"a', '"\\x"', "1 2", "nan", "[" * 99],
)
def test_what_is_not_json_is_refused(interpreter: Lua, text: str) -> None:
    """With a reason, in bounded depth."""
    decoded = interpreter.ask("decode", hex=text.encode().hex())
    assert decoded["value"] is None
    assert decoded["why"]
