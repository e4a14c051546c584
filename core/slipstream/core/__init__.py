# SPDX-License-Identifier: Apache-2.0
"""Every decision of Slipstream, pure: no clock, no I/O, no hidden random state."""
