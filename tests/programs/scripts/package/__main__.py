# SPDX-License-Identifier: Apache-2.0
"""Run as `python -m package`."""

import plain  # noqa: F401
