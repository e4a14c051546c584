# SPDX-License-Identifier: Apache-2.0
"""What a job needs, known before it runs: features of a submission, history, an estimate.

`Estimator.of(clues)` is called while slurmctld waits: it reads from memory, takes microseconds and
never raises. It must not decide anything: that is the core's.
"""

from slipstream.estimator.estimator import Estimator
from slipstream.estimator.features import Clues, Features, read

__all__ = ["Clues", "Estimator", "Features", "read"]
