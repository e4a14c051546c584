# SPDX-License-Identifier: Apache-2.0
"""The token bucket: the share that is asked for, whatever is done with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.torch_hooks.bucket import FULL_NS, LONGEST_SLEEP_NS, SLICE_NS, Bucket

pytestmark = pytest.mark.unit

MS = 1_000_000


class World:
    """A clock and a device that only this bucket's process uses."""

    def __init__(self, share_pct: int) -> None:
        self.now_ns = 0
        self.used_ns = 0
        self.sleeps = 0
        self.share_pct = share_pct
        self.bucket = Bucket(
            lambda: self.share_pct,
            lambda: self.used_ns,
            now_ns=lambda: self.now_ns,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds * 1e9 <= LONGEST_SLEEP_NS
        self.sleeps += 1
        self.now_ns += round(seconds * 1e9)

    def work(self, duration_ns: int, *, slowed: int = 1) -> None:
        """Use the device for so long; others on it make that last longer."""
        self.bucket.wait()
        self.used_ns += duration_ns
        self.now_ns += duration_ns * slowed


@given(
    share_pct=st.integers(1, 99),
    durations_us=st.lists(st.integers(1, 30_000), min_size=1, max_size=8),
    slowed=st.integers(1, 3),
)
def test_the_share_is_kept_exactly(share_pct: int, durations_us: list[int], slowed: int) -> None:
    """Of any work, also beside others: what is used is what was earned, but for a bucketful."""
    world = World(share_pct)
    for _ in range(40):
        for duration in durations_us:
            world.work(duration * 1000, slowed=slowed)
    world.bucket.wait()
    earned_ns = world.now_ns * share_pct // 100
    assert world.used_ns <= earned_ns + FULL_NS
    if share_pct * slowed < 100:  # else there is less to be had than was asked for
        assert world.used_ns >= earned_ns - FULL_NS - 40 * len(durations_us)


def test_it_sleeps_for_slices_and_not_for_each_piece_of_work() -> None:
    """Ten thousand pieces of ten microseconds at ten percent: a dozen sleeps."""
    world = World(10)
    for _ in range(10_000):
        world.work(10_000)
    assert world.used_ns == 100 * MS
    assert world.sleeps <= 2 * world.used_ns // SLICE_NS


def test_nothing_is_saved_up_beyond_a_bucketful() -> None:
    """Who did not use its share for an hour does not run for minutes at once."""
    world = World(50)
    world.now_ns += 3_600_000 * MS
    world.work(10 * FULL_NS)
    began_ns = world.now_ns
    world.work(1)
    assert world.now_ns - began_ns >= 8 * FULL_NS  # ten were used and five earned meanwhile


def test_a_share_of_all_of_it_never_waits() -> None:
    """And one that becomes all of it ends a wait."""
    world = World(100)
    for _ in range(100):
        world.work(50 * MS)
    assert world.sleeps == 0


def test_a_share_of_nothing_waits_until_there_is_one() -> None:
    """It looks again ten times a second."""
    world = World(0)
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        world.now_ns += round(seconds * 1e9)
        if len(looks) == 5:
            world.share_pct = 100

    bucket = Bucket(
        lambda: world.share_pct,
        lambda: world.used_ns,
        now_ns=lambda: world.now_ns,
        sleep=sleep,
    )
    world.used_ns += 10 * MS
    bucket.wait()
    assert len(looks) == 5
    assert bucket.slept_ns == 5 * LONGEST_SLEEP_NS
