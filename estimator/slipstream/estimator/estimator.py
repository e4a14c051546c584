# SPDX-License-Identifier: Apache-2.0
"""The estimator as the submit path calls it: synchronous, from memory, never raises."""

from __future__ import annotations

import logging

from slipstream.core.estimate import Estimate
from slipstream.estimator.defaults import safe_default
from slipstream.estimator.families import Families
from slipstream.estimator.features import Clues, Features, read

_LOG = logging.getLogger(__name__)


class Estimator:
    """Says what a job needs: what its family took, or else the safe defaults."""

    def __init__(self) -> None:
        self.failures = 0
        """Submissions that were too much for us: each is a mistake of ours."""
        self.families = Families()

    def estimate(self, features: Features) -> Estimate:
        """What a job with these features needs."""
        return self.families.estimate(features) or safe_default(features)

    def of(self, clues: Clues) -> Estimate:
        """The same from what came with the submission."""
        try:
            return self.estimate(read(clues))
        except Exception:  # noqa: BLE001 (a mistake of ours must cost nobody an answer)
            self.failures += 1
            if self.failures == 1:
                _LOG.exception("job of token %s gets the defaults", clues.request.token)
            return Estimate(gpus=max(1, clues.request.gpus.count))
