# SPDX-License-Identifier: Apache-2.0
"""The running mini-batch time: robust against pauses, quick to follow a real change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.torch_hooks.pace import Pace

pytestmark = pytest.mark.unit

MS = 1_000_000


def after(*durations_ms: float) -> float:
    """The running time in milliseconds after these mini-batches."""
    pace = Pace()
    for duration_ms in durations_ms:
        pace.add(int(duration_ms * MS))
    return pace.duration_ns / MS


def test_a_first_mini_batch_that_compiles_does_not_count() -> None:
    """The smallest of the first ones is the best guess."""
    assert after(9000, 10, 11, 10) == 10


def test_steady_mini_batches_give_their_time() -> None:
    """To the nanosecond."""
    assert after(*[20] * 50) == 20


def test_one_long_pause_moves_it_by_an_eighth() -> None:
    """A validation of an hour is one outlier."""
    assert after(*[20] * 20, 3_600_000) == 22.5


def test_a_lasting_change_is_followed() -> None:
    """Ten times slower is seen within thirty mini-batches, ten times faster too."""
    assert after(*[20] * 20, *[200] * 40) == pytest.approx(200, rel=0.05)
    assert after(*[200] * 20, *[20] * 60) == pytest.approx(20, rel=0.05)


@given(
    outliers=st.lists(st.integers(0, 9), min_size=100, max_size=400),
    pause_ms=st.floats(0.001, 1e7),
)
def test_pauses_and_short_ones_among_the_rest_hardly_move_it(
    outliers: list[int], pause_ms: float
) -> None:
    """Wherever they fall, up to one mini-batch in ten, however long or short."""
    durations = [20.0] * 20
    for place in outliers:
        ten = [20.0] * 10
        ten[place] = pause_ms
        durations += ten
    assert after(*durations) == pytest.approx(20, rel=0.3)


def test_it_never_gets_stuck_at_nothing() -> None:
    """Durations of 0 do not lock it there."""
    assert after(*[0] * 20, *[20] * 400) == pytest.approx(20, rel=0.05)
