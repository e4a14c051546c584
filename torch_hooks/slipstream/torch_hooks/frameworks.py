# SPDX-License-Identifier: Apache-2.0
"""Trainers of others, which write and read checkpoints themselves: they are asked to, unchanged.

Hugging Face's Trainer and Lightning's are met when they begin to train: they are asked to save
between two mini-batches, and go on their own way from what they saved. Hugging Face's knows its
place in an epoch and its random states. Lightning's does not, so these are saved beside what it
saves, and its loaders are brought to their place again (`lightning_loop`).
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import attach, import_hook
from slipstream.torch_hooks.lightning_loop import LightningLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.torch_hooks.run import Run

    Arguments = dict[str, Any]

_LIGHTNING_FILE = "lightning.ckpt"
_WRAPPED = "__slipstream_wrapped__"


def meet() -> None:
    """Be there when one of them is imported, or has been."""
    for module in import_hook.FRAMEWORKS:
        is_there(module)
        import_hook.watch(module, functools.partial(is_there, module))


def is_there(module: str) -> None:
    """Wrap the Trainer of a module, once; one that is still being imported may have none yet."""
    trainer = getattr(sys.modules.get(module), "Trainer", None)
    if trainer is None:
        return
    if module == "transformers.trainer":
        _wrap(trainer, "train", _hugging_face)
    else:
        _wrap(trainer, "fit", _lightning)


def _wrap(trainer: type[Any], name: str, prepare: Callable[[Any, Arguments], Run | None]) -> None:
    train = getattr(trainer, name)
    if hasattr(train, _WRAPPED):
        return
    signature = inspect.signature(train)

    @functools.wraps(train)
    def wrapped(self: Any, *arguments: Any, **named: Any) -> object:  # noqa: ANN401 (as it comes)
        try:
            bound = signature.bind(self, *arguments, **named)
            run = prepare(self, bound.arguments)
        except Exception as error:  # noqa: BLE001 (the promise of this room)
            attach.complain("framework", f"{trainer.__module__}: {error!r}")
            return train(self, *arguments, **named)
        if run is None:
            return train(self, *arguments, **named)
        run.begin()
        try:
            return train(*bound.args, **bound.kwargs)
        finally:
            run.end()

    vars(wrapped)[_WRAPPED] = True
    setattr(trainer, name, wrapped)


def _hugging_face(trainer: Any, arguments: Arguments) -> Run | None:  # noqa: ANN401 (not our dependency)
    settings = trainer.args
    if settings.save_only_model or settings.push_to_hub:
        attach.complain("framework", "this Trainer's checkpoints are not complete or not private")
        return None

    def save(folder: str) -> None:
        before, settings.output_dir = settings.output_dir, folder
        try:
            trainer._save_checkpoint(trainer.model, None)  # noqa: SLF001 (there is no public one)
        finally:
            settings.output_dir = before

    def load(folder: str) -> None:
        (name,) = (name for name in os.listdir(folder) if name.startswith("checkpoint-"))  # noqa: PTH208 (a name is wanted)
        arguments["resume_from_checkpoint"] = f"{folder}/{name}"

    run = _run(save, load, with_place=False)
    base = sys.modules["transformers.trainer_callback"].TrainerCallback
    callback = _calling(base, "on_step_end", run.boundary)()
    trainer.add_callback(callback)
    run.at_end = lambda: trainer.remove_callback(callback)
    return run


def _lightning(trainer: Any, arguments: Arguments) -> Run | None:  # noqa: ANN401 (not our dependency)
    def load(folder: str) -> None:
        arguments["ckpt_path"] = f"{folder}/{_LIGHTNING_FILE}"
        loop.load(folder)

    def save(folder: str) -> None:
        trainer.save_checkpoint(f"{folder}/{_LIGHTNING_FILE}")
        loop.save(folder)

    run = _run(save, load, with_place=True)
    loop = LightningLoop(trainer, run)
    loop.follow()
    run.at_end = loop.leave
    return run


def _run(save: Callable[[str], None], load: Callable[[str], None], *, with_place: bool) -> Run:
    from slipstream.torch_hooks import run  # noqa: PLC0415 (only where there is a trainer)

    return run.of_own_checkpoints(save, load, with_place=with_place)


def _calling(base: type[Any], event: str, function: Callable[[], None]) -> type[Any]:
    """A callback of theirs that calls ours."""
    return type("SlipstreamCallback", (base,), {event: lambda *_, **__: function()})
