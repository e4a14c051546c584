# SPDX-License-Identifier: Apache-2.0
"""The models in memory: read from their folder when it changes, never while a job waits.

One thread may `refresh` while another asks: what is asked is one dictionary that is replaced as a
whole. A file that is no model means defaults and one loud line, not an exception.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.estimator.model import EVERYBODY
from slipstream.estimator.model_file import ModelFileError, path_of, read
from slipstream.estimator.predicting import estimate_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from slipstream.core.estimate import Estimate
    from slipstream.estimator.features import Features
    from slipstream.estimator.model import Model

_LOG = logging.getLogger(__name__)
FOLDER: Final = "models"
SUFFIX: Final = ".model"


class Models:
    """All models of a state folder, or none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._by_file: dict[str, Model] = {}
        self._by_family: dict[str, Model] = {}
        self.bad: dict[str, str] = {}
        """Files that cannot be used, with why."""

    @property
    def by_family(self) -> Mapping[str, Model]:
        """What is asked now; EVERYBODY is the model of all runs."""
        return self._by_family

    def of_family(self, features: Features) -> Estimate | None:
        """What the model of its family says of a job; None if there is none for it."""
        model = self._by_family.get(features.family)
        found = None if model is None else estimate_of(model, features)
        everybody = self._by_family.get(EVERYBODY)
        if found is None or found.shared_slowdown is not None or everybody is None:
            return found
        # Others' runs beside others are better than none of one's own.
        return replace(found, shared_slowdown=everybody.sharing.slowdown(found.gpu_use_pct))

    def of_everybody(self, features: Features) -> Estimate | None:
        """What the model of all runs says."""
        model = self._by_family.get(EVERYBODY)
        return None if model is None else estimate_of(model, features)

    def refresh(self) -> bool:
        """Read what has changed in the folder; says whether anything has. Never raises."""
        if self._folder is None:
            return False
        try:
            now = {
                path.name: (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                for path in sorted(self._folder.glob(f"*{SUFFIX}"))
                for stat in (path.stat(),)
            }
        except OSError:  # a file that went while we looked: the next look finds the rest
            return False
        if now == self._seen:
            return False
        changed = [name for name, seen in now.items() if self._seen.get(name) != seen]
        for name in (*changed, *(self._seen.keys() - now.keys())):
            self._by_file.pop(name, None)
            self.bad.pop(name, None)
        for name in changed:
            self._read(self._folder / name)
        self._seen = now
        self._by_family = {model.family: model for model in self._by_file.values()}
        return True

    def _read(self, path: Path) -> None:
        try:
            model = read(path)
            if path.name != path_of(path.parent, model.family).name:
                raise ModelFileError("under the name of another family")  # noqa: TRY301 (as others)
            model.forest.means  # noqa: B018 (made now, so that nobody waits for it later)
        except (ModelFileError, OSError) as error:
            self.bad[path.name] = str(error)
            _LOG.critical("%s is not used, its jobs get defaults: %s", path, error)
            return
        self._by_file[path.name] = model
        off = {name: score.off for name, score in model.scores.items() if score.off}
        if off and model.family != EVERYBODY:
            _LOG.warning("estimates of family %r are switched off: %s", model.family, off)
