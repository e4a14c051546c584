# SPDX-License-Identifier: Apache-2.0
"""One node's decisions: the reflexes that hold an owner's speed, and the turns of shared jobs."""
