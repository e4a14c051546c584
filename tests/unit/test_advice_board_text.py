# SPDX-License-Identifier: Apache-2.0
"""The texts around the board: lists of node names, markers of jobs, the place of the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from board_probe import BoardProbe
from slipstream.slurm_plugin.advice import token_of
from slipstream.slurm_plugin.advice_board import board_path

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

TOKEN = "00c0ffee00c0ffee"  # noqa: S105 (names a job, opens nothing)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoardProbe]:
    """The C reader, without a board."""
    with BoardProbe(tmp_path_factory.mktemp("none") / "advice.board") as reader:
        yield reader


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-11]-ib,gpu.x", ["n08-ib", "n09-ib", "n10-ib", "n11-ib", "gpu.x"]),
        ("[1-2]", ["1", "2"]),
        ("n0,n[0]", ["n0", "n0"]),
        ("", None),
        ("n[1-3", None),
        ("n[3-1]", None),
        ("n[1-]", None),
        ("n[]", None),
        ("n1,,n2", None),
        ("n1,", None),
        ("n 1", None),
        ("n[1]m[2]", None),
        ("n[1234567890]", None),
        ("n[0-999999999]", None),
        ("n" * 300, None),
    ],
)
def test_lists_of_names(probe: BoardProbe, text: str, names: list[str] | None) -> None:
    """What is a list is unfolded, what is none is refused as a whole."""
    assert probe.names(text) == names


@pytest.mark.parametrize(
    ("comment", "token"),
    [
        (f"[slipstream v=1 token={TOKEN} class=auto role=guest]", TOKEN),
        (f"a site's words [x] [slipstream token={TOKEN} v=1]", TOKEN),
        (f"[slipstream v=1 token=1111111111111111] [slipstream v=1 token={TOKEN}]", TOKEN),
        (f"[slipstream v=2 token={TOKEN}]", None),
        (f"[slipstream v=1 token={TOKEN}", None),
        (f"[slipstream v=1 xtoken={TOKEN}]", None),
        ("[slipstream v=1 token=12]", None),
        (f"[slipstream v=1 token={TOKEN} token=]", TOKEN),
        (f"[slipstream v=1 token={TOKEN} token=GGGGGGGGGGGGGGGG]", TOKEN),
        (f"[slipstream v=1 token={TOKEN}0]", None),
        ("", None),
    ],
)
def test_the_token_in_a_marker(probe: BoardProbe, comment: str, token: str | None) -> None:
    """The wrapper in C and the daemon in Python read the same."""
    assert probe.marker(comment) == token
    assert token_of(comment) == token


def test_the_place_of_the_board_is_the_wrappers() -> None:
    """By SLIPSTREAM_RUN_DIR or in the default folder."""
    assert board_path({}) == Path("/run/slipstream/advice.board")
    assert board_path({"SLIPSTREAM_RUN_DIR": "/a"}) == Path("/a/advice.board")
