#!/usr/bin/env python
# SPDX-License-Identifier: Apache-2.0
"""Started by its own first line."""

import plain  # noqa: F401
