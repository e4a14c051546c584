# SPDX-License-Identifier: Apache-2.0
"""What is written can be read back, and garbage is an error of one kind."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.slurm_plugin import Gres, SlurmParseError, TaskId, Version, parse_job_ref
from slipstream.slurm_plugin.gres import parse_asked_gres, parse_gres, render_gres
from slipstream.slurm_plugin.hosts import expand, expand_indices, fold, fold_indices
from slipstream.slurm_plugin.parse_text import (
    parse_controller_version,
    parse_pids,
    parse_ping,
    parse_submitted,
)
from slipstream.slurm_plugin.parse_topology import parse_topology
from slipstream.slurm_plugin.version import parse_version

pytestmark = pytest.mark.property

WORDS = st.from_regex(r"[a-z][a-z0-9_.-]{0,6}", fullmatch=True).filter(lambda w: w != "no_consume")
HOSTS = st.from_regex(r"[a-z]{1,4}(-[a-z]{1,3})?[0-9]{0,4}(-ib)?", fullmatch=True)
INDICES = st.lists(st.integers(0, 2000), unique=True, max_size=30).map(sorted)
GRES = st.builds(
    Gres,
    name=WORDS.filter(lambda w: w != "gres"),
    type=st.one_of(st.just(""), WORDS),
    count=st.integers(0, 10**9),
)
HOLDINGS = st.builds(
    lambda gres, indices: replace(gres, count=len(indices), indices=tuple(indices)), GRES, INDICES
)


@given(st.lists(HOSTS, unique=True, max_size=40))
def test_host_lists_come_back(names: list[str]) -> None:
    """Folded and expanded, every name is there once."""
    folded = fold(names)
    assert sorted(expand(folded)) == sorted(names)
    assert fold(expand(folded)) == folded


@given(st.lists(HOSTS, unique=True, min_size=1, max_size=10))
def test_a_plain_list_keeps_its_order(names: list[str]) -> None:
    """As Slurm wrote it, so it is read."""
    assert list(expand(",".join(names))) == names


@given(INDICES)
def test_index_lists_come_back(indices: list[int]) -> None:
    """Ranges and single ones."""
    assert list(expand_indices(fold_indices(indices))) == indices


@given(st.lists(GRES, max_size=6))
def test_gres_come_back(gres: list[Gres]) -> None:
    """As an option takes them, and with the prefixes Slurm puts before a request."""
    assert parse_gres(render_gres(gres)) == tuple(gres)
    for prefix in ("gres:", "gres/"):
        asked = ",".join(prefix + str(one) for one in gres)
        assert parse_asked_gres(asked) == tuple(gres)


@given(st.lists(HOLDINGS, max_size=4))
def test_held_gres_come_back(gres: list[Gres]) -> None:
    """With the indices Slurm tells, commas and all."""
    written = ",".join(f"{one}(IDX:{fold_indices(one.indices) or 'N/A'})" for one in gres)
    assert parse_gres(written) == tuple(gres)


@given(st.integers(0, 2**32 - 1), st.one_of(st.none(), st.integers(0, 4_000_000)))
def test_job_names_come_back(job_id: int, task: int | None) -> None:
    """Numbers and tasks."""
    ref = job_id if task is None else TaskId(job_id, task)
    assert parse_job_ref(str(ref)) == ref


@given(st.integers(15, 99), st.sampled_from([2, 5, 8, 11]), st.integers(0, 99))
def test_versions_come_back(major: int, minor: int, micro: int) -> None:
    """With the zero before the month."""
    version = Version(major, minor, micro)
    assert parse_version(f"slurm-wlm {version}") == version


@pytest.mark.parametrize(
    "parse",
    [
        expand,
        expand_indices,
        parse_asked_gres,
        parse_controller_version,
        parse_gres,
        parse_job_ref,
        parse_pids,
        parse_ping,
        parse_submitted,
        parse_topology,
        parse_version,
    ],
)
@given(
    text=st.one_of(
        st.text(max_size=60), st.text("gpu:n[]()0123456789-,=/%@!*& \nIDXCNT", max_size=40)
    )
)
def test_garbage_is_an_error_of_one_kind(parse: object, text: str) -> None:
    """Whatever a broken or newer Slurm may print, nobody needs a second except clause."""
    assert callable(parse)
    with contextlib.suppress(SlurmParseError):
        parse(text)
