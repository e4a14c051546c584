# SPDX-License-Identifier: Apache-2.0
"""The policies that `slipstream simulate` compares; ours is the brain of core itself."""
