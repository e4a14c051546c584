# SPDX-License-Identifier: Apache-2.0
"""The dashboard: what the machine knows, live, for a browser. It only reads; nothing waits for it.

What it remembers beyond the machine's own state (timelines, curves) is in memory and bounded.
"""
