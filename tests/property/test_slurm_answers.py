# SPDX-License-Identifier: Apache-2.0
"""Recorded answers with something wrong in them: read, or refused with one kind of error."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import recorded
from slipstream.slurm_plugin import SlurmParseError
from slipstream.slurm_plugin.parse_jobs import parse_jobs
from slipstream.slurm_plugin.parse_nodes import parse_nodes
from slipstream.slurm_plugin.values import Fields, read_document, reported_errors

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.property

_DEEPEST_READ = 3
STRANGE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 2**31, 2**64, 10**30]),
    st.floats(),
    st.text(max_size=20),
    st.just({"set": True, "infinite": False, "number": "7"}),
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=5,
    ),
)


@functools.cache
def records(version: str, kind: str) -> list[dict[str, Any]]:
    """The recorded jobs or nodes of a version."""
    name = "squeue-all.json" if kind == "jobs" else recorded.nodes_file(version)
    found: list[dict[str, Any]] = json.loads(recorded.text(version, name))[kind]
    return found


def places(value: object, here: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place inside a record; no deeper than anybody reads."""
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    if len(here) == _DEEPEST_READ:
        inner = []
    return [here, *(place for key, below in inner for place in places(below, (*here, key)))]


@pytest.mark.parametrize("version", recorded.VERSIONS)
@pytest.mark.parametrize(("kind", "parse"), [("jobs", parse_jobs), ("nodes", parse_nodes)])
@settings(max_examples=60)
@given(data=st.data())
def test_a_mutated_answer_is_read_or_refused(
    version: str, kind: str, parse: Callable[[Fields], object], data: st.DataObject
) -> None:
    """A value replaced or left out anywhere raises nothing but SlurmParseError."""
    record = copy.deepcopy(data.draw(st.sampled_from(records(version, kind))))
    place = data.draw(st.sampled_from([place for place in places(record) if place]))
    holder: Any = record
    for key in place[:-1]:
        holder = holder[key]
    if data.draw(st.booleans()):
        holder[place[-1]] = data.draw(STRANGE)
    else:
        del holder[place[-1]]
    with contextlib.suppress(SlurmParseError):
        parse(Fields(kind, {kind: [record]}))


@given(st.text(max_size=200))
def test_text_is_a_document_or_refused(text: str) -> None:
    """And so are the errors reported inside it."""
    with contextlib.suppress(SlurmParseError):
        reported_errors(read_document(text, "squeue"))


@pytest.mark.parametrize("version", recorded.VERSIONS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_cut_answer_is_refused(version: str, data: st.DataObject) -> None:
    """Never half of a queue: a command that was killed may leave any beginning of its answer."""
    whole = recorded.text(version, "squeue-all.json").rstrip()
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(SlurmParseError):
        read_document(whole[:length], "squeue")
