# SPDX-License-Identifier: Apache-2.0
"""The estimator as the submit path calls it: synchronous, from memory, never raises."""

from __future__ import annotations

import logging

from slipstream.core.estimate import Estimate
from slipstream.estimator.defaults import safe_default
from slipstream.estimator.families import Families
from slipstream.estimator.features import Clues, Features, read
from slipstream.estimator.models import Models

_LOG = logging.getLogger(__name__)


class Estimator:
    """Says what a job needs, from the best there is.

    That is the model of its family, what its family took, the model of all, or the safe defaults.
    """

    def __init__(self, models: Models | None = None) -> None:
        self.failures = 0
        """Submissions that were too much for us: each is a mistake of ours."""
        self.models = models or Models()
        self.families = Families()

    def estimate(self, features: Features) -> Estimate:
        """What a job with these features needs."""
        return (
            self.models.of_family(features)
            or self.families.estimate(features)
            or self.models.of_everybody(features)
            or safe_default(features)
        )

    def of(self, clues: Clues) -> Estimate:
        """The same from what came with the submission."""
        try:
            return self.estimate(read(clues))
        except Exception:  # noqa: BLE001 (a mistake of ours must cost nobody an answer)
            self.failures += 1
            if self.failures == 1:
                _LOG.exception("job of token %s gets the defaults", clues.request.token)
            return Estimate(gpus=max(1, clues.request.gpus.count))
