# SPDX-License-Identifier: Apache-2.0
"""Looks whether torch is there before it imports it, as many libraries do."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise SystemExit("this program needs torch")

import plain  # noqa: F401
