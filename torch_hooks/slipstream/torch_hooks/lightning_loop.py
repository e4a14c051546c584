# SPDX-License-Identifier: Apache-2.0
"""Lightning's training loop, saved before it fetches a batch and brought to its place again.

Lightning's checkpoints have its counters, but neither random states nor a place in a loader, nor
the values that it has collected in the epoch. Its loop fetches the remaining *number* of batches,
from the beginning of another order. So the random states before the epoch's iterators were made,
before their first batch, and of the moment are saved beside its checkpoint, and the batches that
were used are passed over.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import attach

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from slipstream.torch_hooks.run import Run
else:
    from slipstream.torch_hooks.lazy_torch import torch

_FILE = "collected.pt"


class LightningLoop:
    """Between a Trainer and the run that it is."""

    def __init__(self, trainer: Any, run: Run) -> None:  # noqa: ANN401 (not our dependency)
        self._trainer = trainer
        self._run = run
        self._is_first = True
        self._collected: dict[str, Any] | None = None

    def follow(self) -> None:
        """Be there when the loop makes its iterators, and when it fetches a batch."""
        fit, epoch = self._trainer.fit_loop, self._trainer.fit_loop.epoch_loop
        setup_data, on_run_start, advance = fit.setup_data, epoch.on_run_start, epoch.advance

        @functools.wraps(setup_data)
        def watched_setup_data() -> object:
            with self._iterators_made():
                return setup_data()

        @functools.wraps(on_run_start)
        def watched_on_run_start(data_fetcher: Any) -> object:  # noqa: ANN401 (Lightning's)
            self._is_first = True
            with self._iterators_made():
                return on_run_start(data_fetcher)

        @functools.wraps(advance)
        def watched_advance(data_fetcher: Any) -> object:  # noqa: ANN401 (Lightning's)
            with _harmless():
                self._before_batch(data_fetcher)
            return advance(data_fetcher)

        fit.setup_data = watched_setup_data
        epoch.on_run_start = watched_on_run_start
        epoch.advance = watched_advance

    def leave(self) -> None:
        """The loops' functions are Lightning's own again."""
        fit = self._trainer.fit_loop
        for loop, name in (
            (fit, "setup_data"),
            (fit.epoch_loop, "on_run_start"),
            (fit.epoch_loop, "advance"),
        ):
            vars(loop).pop(name, None)

    def save(self, folder: str) -> None:
        """What the epoch has collected: Lightning forgets it."""
        trainer = self._trainer
        results = trainer.fit_loop.epoch_loop._results  # noqa: SLF001 (there is no public one)
        collected = {
            "results": {
                key: {
                    name: getattr(one, name)
                    for name in ("value", "cumulated_batch_size")
                    if hasattr(one, name)
                }
                for key, one in results.items()
                if one.is_tensor and not one.has_reset
            },
            "callback_metrics": dict(trainer._logger_connector._callback_metrics),  # noqa: SLF001 (as above)
            "metrics": {
                name: {"states": dict(one.metric_state), "updates": one._update_count}  # noqa: SLF001 (torchmetrics')
                for name, one in trainer.lightning_module.named_modules()
                if _is_metric(one)
            },
        }
        torch.save(collected, f"{folder}/{_FILE}")

    def load(self, folder: str) -> None:
        """Have it given back when the loop is at its place."""
        self._collected = torch.load(f"{folder}/{_FILE}", weights_only=True)

    @contextlib.contextmanager
    def _iterators_made(self) -> Iterator[None]:
        """Around what may make the iterators of an epoch: in there, and nowhere else, by `iter`."""
        fetchers = sys.modules[f"{self._package()}.loops.fetchers"]
        kind = fetchers._DataFetcher  # noqa: SLF001 (there is no public one)
        original = kind.__iter__

        def iterate(fetcher: Any) -> Any:  # noqa: ANN401 (Lightning's)
            fit = self._trainer.fit_loop
            if fetcher._combined_loader is fit._combined_loader:  # noqa: SLF001 (as above)
                with _harmless():
                    loaders = fit._combined_loader.flattened  # noqa: SLF001 (as above)
                    self._run.loops.begin_epoch(self._trainer.current_epoch, loaders)
            return original(fetcher)

        kind.__iter__ = iterate
        try:
            yield
        finally:
            kind.__iter__ = original

    def _before_batch(self, data_fetcher: Any) -> None:  # noqa: ANN401 (Lightning's)
        loops, epoch = self._run.loops, self._trainer.fit_loop.epoch_loop
        if hasattr(data_fetcher, "_batch_idx"):  # training_step takes the iterator itself
            loops.refuse("training_step takes dataloader_iter, whose place nobody can tell")
        elif self._is_first:
            self._is_first = False
            resumes = loops.resumes
            used = loops.ask_first()
            if resumes:
                self._pass_over(data_fetcher, used)
                loops.passed_over()
                # It is where it was, with all that it had: no part of the epoch is left out.
                for loop in (self._trainer.fit_loop, epoch, epoch.val_loop):
                    loop._restarting = False  # noqa: SLF001 (the property would say another thing)
                self._give_back()
        progress = epoch.batch_progress
        loops.rest(progress.total.completed, progress.current.completed)

    def _pass_over(self, data_fetcher: Any, used: int) -> None:  # noqa: ANN401 (Lightning's)
        loaders = self._trainer.fit_loop._combined_loader.flattened  # noqa: SLF001 (as above)
        if all(callable(getattr(one, "load_state_dict", None)) for one in loaders):
            return  # Lightning has told them their places
        fetched = data_fetcher.fetched
        # Lightning has counted the used ones as fetched; counted twice they would end the epoch.
        data_fetcher.fetched, data_fetcher.done = 0, False
        for _ in range(used):
            next(data_fetcher)
        if data_fetcher.length is not None:
            data_fetcher.fetched = fetched
            data_fetcher.done = fetched >= data_fetcher.length

    def _give_back(self) -> None:
        collected, self._collected = self._collected, None
        if collected is None:
            return
        trainer = self._trainer
        trainer._logger_connector._callback_metrics.update(collected["callback_metrics"])  # noqa: SLF001 (as above)
        for name, one in trainer.lightning_module.named_modules():
            if _is_metric(one) and name in collected["metrics"]:
                for state, value in collected["metrics"][name]["states"].items():
                    setattr(one, state, value)
                one._update_count = collected["metrics"][name]["updates"]  # noqa: SLF001 (torchmetrics')
        results = trainer.fit_loop.epoch_loop._results  # noqa: SLF001 (as above)
        update = results.update_metrics
        waiting = collected["results"]

        def update_metrics(key: str, value: object, batch_size: int) -> object:
            if key in waiting:
                for name, then in waiting.pop(key).items():
                    setattr(results[key], name, then)
            return update(key, value, batch_size)

        results.update_metrics = update_metrics

    def _package(self) -> str:
        for kind in type(self._trainer).__mro__:
            package = kind.__module__.partition(".trainer")[0]
            if f"{package}.loops.fetchers" in sys.modules:
                return package
        raise LookupError("this is no Trainer of Lightning's")


def _is_metric(module: Any) -> bool:  # noqa: ANN401 (any module)
    return hasattr(type(module), "metric_state") and hasattr(module, "_update_count")


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """What goes wrong in here is ours to note; the Trainer goes on."""
    try:
        yield
    except StopIteration as error:
        attach.complain("framework", f"lightning: fewer batches than before: {error!r}")
    except Exception as error:  # noqa: BLE001 (the promise of this room)
        attach.complain("framework", f"lightning: {error!r}")
