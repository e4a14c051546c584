# SPDX-License-Identifier: Apache-2.0
"""Host lists and index lists as Slurm writes them."""

from __future__ import annotations

import pytest

from slipstream.slurm_plugin import SlurmParseError
from slipstream.slurm_plugin.hosts import expand, expand_indices, fold, fold_indices

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1,3-4],m1", ("n1", "n3", "n4", "m1")),
        ("gpu[08-11]", ("gpu08", "gpu09", "gpu10", "gpu11")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a-1.site,b[2-3]-ib", ("a-1.site", "b2-ib", "b3-ib")),
    ],
)
def test_a_host_list_is_its_names(text: str, names: tuple[str, ...]) -> None:
    """Ranges, padding, several brackets, a suffix behind the bracket."""
    assert expand(text) == names


def test_the_order_of_the_text_is_kept() -> None:
    """Slurm lists a job's GRES in the order of its nodes: sorting would mix them up."""
    assert expand("n[3-4,1],a2") == ("n3", "n4", "n1", "a2")


@pytest.mark.parametrize(
    "text",
    ["n[1-3", "n[]", "n[3-1]", "n1,,n2", "n1,", "n[1-3-4]", "n[a-b]", "@all", "n*", "n1!n2", "n 1"],
)
def test_what_is_no_host_list_is_quoted(text: str) -> None:
    """Among it ClusterShell's own operators, groups and wildcards."""
    with pytest.raises(SlurmParseError) as raised:
        expand(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize("text", ["n[1-999999999]", "n[1-9999]m[1-9999]", "n[1-60000],m[1-60000]"])
def test_a_list_too_long_to_be_true_is_refused(text: str) -> None:
    """Before it fills the memory."""
    with pytest.raises(SlurmParseError, match="host list"):
        expand(text)


def test_names_are_folded_for_slurm() -> None:
    """With one bracket at most, which every release understands."""
    assert fold(["n1", "n2", "n10", "m1"]) == "m1,n[1-2,10]"
    assert fold(["r1n1", "r1n2", "r2n1"]) == "r1n[1-2],r2n1"
    assert fold(["n08", "n09", "n10"]) == "n[08-10]"
    assert fold([]) == ""


def test_a_name_that_could_be_an_option_of_something_is_refused() -> None:
    """Host names have no spaces, commas or brackets."""
    with pytest.raises(SlurmParseError, match=r"node name 'n1,n2'"):
        fold(["n1,n2"])


@pytest.mark.parametrize(
    ("text", "indices"),
    [("", ()), ("7", (7,)), ("0,2-3", (0, 2, 3)), ("0-8:4", (0, 4, 8)), ("1-2,8", (1, 2, 8))],
)
def test_an_index_list_is_its_numbers(text: str, indices: tuple[int, ...]) -> None:
    """Also with the step Slurm writes for arrays."""
    assert expand_indices(text) == indices


@pytest.mark.parametrize("text", ["a", "5-2", "0-10/2", "0-4:0", "1-", "-1", "0-999999999", "1 2"])
def test_what_is_no_index_list_is_quoted(text: str) -> None:
    """Whatever ClusterShell would make of it."""
    with pytest.raises(SlurmParseError) as raised:
        expand_indices(text)
    assert repr(text) in str(raised.value)


def test_numbers_are_folded() -> None:
    """As --array takes them."""
    assert fold_indices([0, 2, 3, 10]) == "0,2-3,10"
