# SPDX-License-Identifier: Apache-2.0
"""The two lines that make any loop one that can be stopped and go on elsewhere, to the bit.

    with session(model, optimizer, scheduler) as run:
        for epoch, batches in run.epochs(loader, 10):
            for inputs, targets in batches:
                ...

Without Slipstream around it this is a plain loop. This module can be imported before torch, and
without it. Nothing in here raises into the program: what cannot be saved or restored is noted, and
training goes on or starts from the beginning.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import attach, pages, rebind
from slipstream.torch_hooks.attach import CHECKPOINT_VARIABLE, RESTORE_VARIABLE
from slipstream.torch_hooks.checkpoint import (
    found,
    generations,
    own,
    parts,
    ranks,
    restoring,
    shared,
)
from slipstream.torch_hooks.checkpoint.encoding import Encoder
from slipstream.torch_hooks.checkpoint.generations import Generation
from slipstream.torch_hooks.checkpoint.loops import Loops
from slipstream.torch_hooks.checkpoint.spill import Spill
from slipstream.torch_hooks.checkpoint.writer import Snapshot, Writer
from slipstream.torch_hooks.read_ahead import DURABLE_VARIABLE
from slipstream.wire.control_block import Capability, Phase, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

_TASK = "task-"


@contextmanager
def session(
    *parts: Any,  # noqa: ANN401 (whatever has a state)
    save: Callable[[str], object] | None = None,
    load: Callable[[str], object] | None = None,
    **named: Any,  # noqa: ANN401 (whatever has a state)
) -> Iterator[Run]:
    """A training that can be saved between any two batches, and that goes on from where it was.

    Args:
        save: for programs with checkpoints of their own: writes one into the folder it is given.
        load: the same, reads one from the folder it is given. With `run.epochs` the place in the
            epoch and the random states are saved and restored beside what these two do.
        parts: what the training consists of: modules, and whatever has a state_dict and a
            load_state_dict. Optimizers, schedulers and scalers of these modules are found.
        named: the same, for what is to have a name of its own in the checkpoint.
    """
    attach.attach()
    if save and load:
        run = Run(_Own(save, load))
    else:
        half = {name: one for name, one in (("save", save), ("load", load)) if one}
        run = Run(_State(parts, {**named, **half}))
    run.begin()
    try:
        yield run
    finally:
        run.end()


def of_own_checkpoints(
    save: Callable[[str], object], load: Callable[[str], object], *, with_place: bool
) -> Run:
    """For parts of the hooks: the run of a trainer that writes and reads its own checkpoints.

    `with_place`: its place in the epoch and the random states are ours to save and restore.
    """
    return Run(_Own(save, load, with_place=with_place))


class Run:
    """A training that can be stopped between any two batches."""

    def __init__(self, state: _State | _Own) -> None:
        self.restored = False
        """Whether this process goes on from a checkpoint."""
        self.at_end: Callable[[], None] = lambda: None
        """For parts of the hooks: called when the loop is over."""
        self._state = state
        self.loops = Loops(self._at_rest, state.resumed, _complain_of_restore)
        """For parts of the hooks: where this training is."""
        self._restart = 0
        self._root: Path | None = None
        self._wanted = False
        self._to_rebind = False
        self._prepared = False
        self._told = False
        self._why_not = ""

    @property
    def minibatches(self) -> int:
        """How many were begun, in this process and in those before it."""
        return self.loops.minibatches

    @property
    def batch(self) -> int:
        """The number of the present batch in its epoch, from 0.

        As `enumerate` would count, which begins at 0 again where a loop goes on in an epoch.
        """
        return self.loops.batch

    def epochs(
        self,
        loader: Iterable[Any],
        count: int | Iterable[int] | None = None,
        *,
        first: int = 0,
    ) -> Iterator[tuple[int, Any]]:
        """Epochs by number, each with its batches, which stand for the loader in all else.

        Args:
            loader: what gives the batches, anew for each epoch.
            count: how many epochs, or their numbers, such as `range(1, 11)`; None: without an end.
            first: the number of the first, for a count.
        """
        return self.loops.epochs(loader, count, first)

    def boundary(self) -> None:
        """A mini-batch is done, all of it: for loops that do not go through `epochs`."""
        self.loops.minibatches += 1
        self._at_rest()

    def save(self) -> bool:
        """Save now; what could not be done is noted. Only where `boundary` could stand."""
        with _during(Phase.SAVING), _harmless("checkpoint"):
            if self._root is None:
                raise ValueError(f"there is no folder for it: {CHECKPOINT_VARIABLE} is not set")
            if self.loops.why_not:
                raise ValueError(f"it could not be gone on with: {self.loops.why_not}")
            generation = Generation(self._restart, self.minibatches)
            self._state.save(self._root, generation, self.loops)
            return True
        return False

    def finish(self) -> None:
        """Wait until what was saved is also verified and in its place."""
        with _harmless("checkpoint"):
            self._state.finish()

    def begin(self) -> None:
        """Restore, if there is what to go on from; then be there to be asked to save."""
        with _harmless("restore"), _during(Phase.RESTORING):
            self._restore()
        with _harmless("checkpoint"):
            self._root = _folder(CHECKPOINT_VARIABLE)
            self.loops.is_plain = not (self._root or self.restored)
            if not self.loops.is_plain:
                self.loops.follow()
            if self._root:
                if self._root.name.startswith(_TASK):
                    self._root.parent.mkdir(mode=0o700, exist_ok=True)
                there = [one.restart for one in generations.generations(self._root)]
                self._restart = max(self._restart, max(there, default=-1) + 1)
                attach.serve(Request.CHECKPOINT, self._want)
                attach.serve(Request.REBIND, self._want_rebind)

    def _restore(self) -> None:
        """From where the environment says; in a job that Slurm started anew, from what it left."""
        told = _folder(RESTORE_VARIABLE)
        there = [told] if told else restoring.sources(_left()) if _is_restarted() else []
        for source in there:
            generation = self._state.restore(source, self.loops, "" if told else _program())
            if generation:
                self.restored = True
                self._restart = generation.restart + 1
                attach.tell(f"goes on from {source}, generation {generation}")
                if (hooks := attach.current()) is not None:
                    hooks.block.write(resumed_at=generation.minibatches)
                return

    def end(self) -> None:
        """The loop is over: what was begun is finished, and nothing more can be asked."""
        attach.serve_no_longer(Request.CHECKPOINT)
        attach.serve_no_longer(Request.REBIND)
        with _harmless("checkpoint"):
            self.loops.leave()
            self.at_end()
        self.finish()
        with _harmless("checkpoint"):
            hooks = attach.current()
            if hooks is not None and self._told:
                hooks.can(Capability.RESTORABLE | Capability.REBINDABLE, yes=False)

    def _want(self) -> None:
        """At the optimizer's boundary the loop's body goes on: it is done at the next rest."""
        self._wanted = True

    def _want_rebind(self) -> None:
        self._to_rebind = True

    def _at_rest(self) -> None:
        """Between two mini-batches, where the loop's body has ended."""
        if self._root is None:
            return
        if self._to_rebind:
            self._to_rebind = False
            with _during(Phase.SAVING), _harmless("not re-bound"):
                self._rebind(self._root)
        elif self._wanted:
            self._wanted = False
            self.save()
        elif not self._prepared:
            self._prepare(self._root)
        why_not = self.loops.why_not
        if why_not != self._why_not:
            self._why_not = why_not
            if why_not:
                attach.complain("not restorable", why_not)
        if self._is_ready() is not self._told:
            with _harmless("checkpoint"):
                self._tell()
        if (hooks := attach.current()) is not None:
            hooks.own_up()  # what was saved is verified later, beside the training

    def _is_ready(self) -> bool:
        return self._state.ready and not self._why_not

    def _prepare(self, root: Path) -> None:
        """Have memory ready, once there is a page to be asked by and the optimizer has a state."""
        hooks = attach.current()
        if hooks is not None and hooks.minibatches:
            self._prepared = True
            with _harmless("checkpoint"):
                self._state.prepare(root, self._restart, self.loops)

    def _tell(self) -> None:
        hooks = attach.current()
        if hooks is not None:
            self._told = self._is_ready()
            hooks.can(Capability.RESTORABLE, yes=self._told)
            why_not = rebind.why_not()
            hooks.can(Capability.REBINDABLE, yes=self._told and not why_not)
            if why_not:
                attach.tell(f"not re-bindable: {why_not}")

    def _rebind(self, root: Path) -> None:
        """Go on from here in another image of this process, on other GPUs; or simply go on."""
        hooks = attach.current()
        gpus = hooks.directive.gpu_uuids if hooks and hooks.directive else ()
        if hooks is None or not gpus or gpus == hooks.block.identity.gpu_uuids:
            return  # it is there
        rebind.check(gpus)
        if not self.save():
            raise RuntimeError("it could not be saved; training goes on where it is")
        self.finish()
        generation = Generation(self._restart, self.minibatches)
        spill = _spill(root)
        here = CHECKPOINT_VARIABLE
        if generation not in generations.complete(root):
            if spill is None or generation not in generations.complete(spill.root):
                raise RuntimeError(f"{generation} did not become whole; goes on where it is")
            here = DURABLE_VARIABLE
        attach.tell(f"saved as {generation}; begins anew on {','.join(gpus)}")
        with hooks.during(Phase.REBINDING):
            rebind.go(gpus, {RESTORE_VARIABLE: os.environ[here]})


class _State:
    """State that we save and restore ourselves."""

    def __init__(self, parts: Sequence[object], named: dict[str, Any]) -> None:
        self._given = parts, named
        self._small: dict[str, Any] = {}
        self._found: dict[str, Any] | None = None
        self._restored: tuple[Path, Generation] | None = None
        self._writer: Writer | None = None
        self._layout = ""

    @property
    def ready(self) -> bool:
        return self._writer is not None and self._writer.ready

    def restore(self, source: Path, loops: Loops, program: str) -> Generation | None:
        restored = restoring.restore(source, self._parts(), _complain_of_restore, program)
        if restored is None:
            return None
        self._restored = source, restored.generation
        loops.restore(restored.position, restored.random_states)
        self._small = parts.small_states(self._parts())
        return restored.generation

    def resumed(self) -> None:
        """The loop is where it was: undo what the epoch's beginning did to schedulers once more."""
        with _harmless("restore"):
            parts.restore_small(self._parts(), self._small)
        self._small = {}

    def prepare(self, root: Path, restart: int, loops: Loops) -> None:
        _, size = self._snapshot(loops).offsets()
        self._writer_to(root, restart).prepare(size)

    def save(self, root: Path, generation: Generation, loops: Loops) -> None:
        self._writer_to(root, generation.restart).save(generation, self._snapshot(loops))

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.finish()

    def _parts(self) -> dict[str, Any]:
        if self._found is None:
            named = found.named(*self._given)
            for name, part in named.items():
                parts.check(name, part)
            self._found = found.complete(named)
        return self._found

    def _writer_to(self, root: Path, restart: int) -> Writer:
        if self._writer is None:
            here = self._restored and self._restored[0].resolve() == root.resolve()
            self._writer = Writer(
                root,
                ranks.shard(),
                _complain_of_checkpoint,
                restart=restart,
                restored=self._restored[1] if self._restored and here else None,
                spill=_spill(root),
                on_spill=attach.tell,
            )
        return self._writer

    def _snapshot(self, loops: Loops) -> Snapshot:
        encoder = Encoder()
        held = self._parts()
        if not self._layout:
            found.check_learned(held)
            one_for_all = ranks.shard().world_size == 1 and not parts.is_sharded(held)
            replicated = one_for_all or found.is_replicated(held)
            self._layout = restoring.REPLICATED if replicated else restoring.SHARDED
        state = {"random": encoder.encode(loops.random_states(), "random")}
        if self._layout == restoring.SHARDED or ranks.shard().rank == 0:
            state["parts"] = parts.encode(held, encoder)
            state["position"] = encoder.encode(loops.position(), "position")
        hooks = attach.current()
        boundaries = hooks.minibatches if hooks else 0
        return Snapshot(self._layout, state, encoder.storages, boundaries, _program())


class _Own:
    """A program that writes and reads its own checkpoints."""

    def __init__(
        self,
        save: Callable[[str], object],
        load: Callable[[str], object],
        *,
        with_place: bool = True,
    ) -> None:
        self._save = save
        self._load = load
        self._with_place = with_place
        self.ready = False

    def resumed(self) -> None:
        """Its own parts are its own."""

    def restore(self, source: Path, loops: Loops, program: str) -> Generation | None:
        for generation, folder in own.newest(source, _complain_of_restore, program):
            try:
                self._load(str(folder))
            except Exception as error:  # noqa: BLE001 (the program's function may raise anything)
                _complain_of_restore(f"generation {generation} is passed over: {error!r}")
                continue
            loops.minibatches = generation.minibatches
            if self._with_place:
                place = own.place(source, generation, ranks.shard())
                if place is not None:
                    loops.restore(*place)
            return generation
        _complain_of_restore(f"nothing to go on from in {source}")
        return None

    def prepare(self, root: Path, _restart: int, _loops: Loops) -> None:
        root.mkdir(mode=0o700, exist_ok=True)
        self.ready = True

    def save(self, root: Path, generation: Generation, loops: Loops) -> None:
        place = own.coded(loops.position(), loops.random_states()) if self._with_place else None
        try:
            self._save_to(root, generation, place)
        except Exception as error:  # its own function may raise anything for a full disk
            if (spill := _spill(root)) is None:
                raise
            self._save_to(spill.begin(), generation, place)
            spill.done(generation, ranks.shard())
            attach.tell(f"{error!r}: generation {generation} was written to {spill.root}")

    def _save_to(self, root: Path, generation: Generation, place: dict[str, Any] | None) -> None:
        try:
            self._save(str(own.begin(root, generation)))
            hooks = attach.current()
            about = {"program": _program(), "boundaries": hooks.minibatches if hooks else 0}
            own.commit(root, generation, ranks.shard(), {**about, "place": place})
        except BaseException:
            if ranks.shard().world_size == 1:  # others may be writing there
                own.undo(root, generation)
            raise

    def finish(self) -> None:
        """Nothing is left to do."""


@contextmanager
def _harmless(kind: str) -> Iterator[None]:
    """Whatever goes wrong in here is ours to note, not the user's to catch."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (the promise of this room)
        attach.complain(kind, f"{error}" or repr(error))


def _folder(variable: str) -> Path | None:
    """A folder of the environment; tasks of one job that train apart have one each below it."""
    folder = os.environ.get(variable, "")
    task = os.environ.get("SLURM_PROCID", "0")
    if not folder or pages.switched_off():
        return None
    together = ranks.shard().world_size > 1
    return Path(folder) if together or task == "0" else Path(folder) / f"{_TASK}{task}"


def _left() -> list[Path]:
    """Where earlier starts of this job may have saved."""
    places = [_folder(CHECKPOINT_VARIABLE)]
    durable = os.environ.get(DURABLE_VARIABLE, "")
    if durable and shared.waited_for(Path(durable), attach.tell) and Path(durable).exists():
        with _harmless("restore"):
            generations.check_ours(Path(durable))
            places.append(_folder(DURABLE_VARIABLE))
    return [place for place in places if place]


def _spill(root: Path) -> Spill | None:
    """Where what finds no room is saved instead, if there is such a place."""
    job, there = os.environ.get(DURABLE_VARIABLE, ""), _folder(DURABLE_VARIABLE)
    return Spill(Path(job), there, root) if job and there else None


def _is_restarted() -> bool:
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0"


def _program() -> str:
    """Which program this is, and what it was asked for; told without telling its arguments."""
    return hashlib.sha256("\0".join(sys.argv).encode("utf-8", "replace")).hexdigest()[:16]


def _during(phase: Phase) -> AbstractContextManager[None]:
    hooks = attach.current()
    return hooks.during(phase) if hooks is not None else nullcontext()


def _complain_of_restore(sentence: str) -> None:
    attach.complain("restore", sentence)


def _complain_of_checkpoint(sentence: str) -> None:
    attach.complain("checkpoint", sentence)
