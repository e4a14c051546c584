# SPDX-License-Identifier: Apache-2.0
"""What all tests need."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# How long an example takes is no property of ours: two other clusters run on these cores.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

# A shell starts what it leaves in the background with Ctrl-C ignored, and everything below it would
# inherit that: tests that interrupt a program need it as a user's terminal has it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole clusters first: a long file that comes last keeps one worker busy, and no other."""
    items.sort(key=lambda item: item.get_closest_marker("sandbox") is None)
