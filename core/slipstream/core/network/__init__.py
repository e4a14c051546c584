# SPDX-License-Identifier: Apache-2.0
"""Network-aware placement: which nodes for whom, so that those who talk are near. Pure.

`best_fit` places one job, `place_batch` many together; both lessen the same score (scoring.py),
which docs/placement.md writes down.
"""
