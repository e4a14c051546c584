# SPDX-License-Identifier: Apache-2.0
"""A training's state on a ramdisk: raw storages and an index, verified when they are read back."""
