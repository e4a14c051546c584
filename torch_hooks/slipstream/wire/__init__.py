# SPDX-License-Identifier: Apache-2.0
"""What crosses a process border, as fixed layouts in shared memory; standard library only."""
