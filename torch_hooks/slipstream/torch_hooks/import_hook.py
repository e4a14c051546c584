# SPDX-License-Identifier: Apache-2.0
"""The import hook: attaches the hooks when the program imports torch, however it does that.

One finder stands first on `sys.meta_path`. It looks up nothing itself: for a watched module it asks
the finders behind it, and puts a function in the place of `exec_module` on the loader that they
found. So a module that is only looked up (`importlib.util.find_spec`) has its own spec and a loader
of its own type, and stays watched until it is executed without an error. A module that came another
way (a finder before ours, a loader that cannot be changed) is noticed at the next import.

`inject/sitecustomize.py` runs this file at the start of every Python of a job, so it imports
nothing that Python has not imported already. Nothing in here may raise into the program.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident  # built in, as `threading` is not

TYPE_CHECKING = False  # as typing's, which would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec, PathFinder
    from types import ModuleType

    Import = Callable[[], None]
    Around = Callable[[Import], None]

_OURS = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 (no pathlib at start)
_NAMESPACE = "slipstream"
_LENT = frozenset({"slipstream.torch_hooks", "slipstream.wire"})
_EXECUTE = "exec_module"
FRAMEWORKS = (
    "transformers.trainer",
    "lightning.pytorch.trainer.trainer",
    "pytorch_lightning.trainer.trainer",
)
"""Modules with a Trainer; they may be the first that imports torch, and are there only after it."""


def start() -> None:
    """For `sitecustomize`: have `slipstream.torch_hooks` be found, and wait for torch."""
    sys.meta_path.append(_OwnPackages())
    wait_for_torch()


def wait_for_torch() -> None:
    """Attach when the program imports torch; `slipstream.pth` calls this, too."""
    if os.environ.get("SLIPSTREAM_HOOKS") == "0":
        return
    if sys.modules.get("torch") is not None:
        _finish(_attach)  # a .pth file or another sitecustomize has imported it
    elif not any("torch" in getattr(one, "waits_for", ()) for one in sys.meta_path):
        watch("torch", _attach, around=_importing_torch, once=True)
        for name in FRAMEWORKS:
            watch(name, lambda name=name: _framework_is_there(name))  # type: ignore[misc]


def watch(
    name: str, after: Callable[[], None], *, around: Around | None = None, once: bool = False
) -> None:
    """Have `after` called whenever a module has been imported, also after a reload of it.

    Args:
        name: of the module.
        after: what it raises is told in the log, never to the program.
        around: called in place of the import; it must call what it is given.
        once: forget the module when it has been imported.
    """
    FINDER.waits_for[name] = _Watched(after, around, once)
    FINDER.unmet.add(name)
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def without_collecting(import_all: Import) -> None:
    """What an import makes stays: to look for garbage in it takes a tenth of its time."""
    import gc  # noqa: PLC0415 (built in; most programs never come here)

    collects = gc.isenabled()
    gc.disable()
    try:
        import_all()
    finally:
        if collects:
            if not gc.get_freeze_count():  # then all of it is old, without a look at it
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class _Watched:
    """What is done about one module."""

    __slots__ = ("after", "around", "executes", "once")

    def __init__(self, after: Callable[[], None], around: Around | None, once: bool) -> None:  # noqa: FBT001 (private)
        self.after = after
        self.around = around
        self.once = once
        self.executes = False


class _Finder:
    """On sys.meta_path for the life of the process.

    It never leaves: other threads may be going through that list, and would miss a finder.
    """

    def __init__(self) -> None:
        self.waits_for: dict[str, _Watched] = {}
        self.unmet: set[str] = set()
        """Those that were never imported yet."""
        self._asks: set[tuple[str, int]] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that others find, with a loader that tells us when it executes."""
        if self.unmet:
            self._meet_those_that_came_otherwise()
        if name not in self.waits_for:
            return None
        asks = name, get_ident()
        if asks in self._asks:
            return None  # another finder that asks all others in its turn
        self._asks.add(asks)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._asks.discard(asks)
        if spec is not None:
            self._have_told(spec.loader)
        return spec

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        others = list(sys.meta_path)
        if self in others:
            del others[: others.index(self) + 1]  # those before have been asked
        for finder in others:
            find = getattr(finder, "find_spec", None)
            if find is None:
                return None  # one of the old kind, with which importlib knows how to deal
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _have_told(self, loader: object) -> None:
        """Put a function of ours on this loader, if it is an object of the usual kind."""
        if hasattr(loader, _EXECUTE):
            try:  # noqa: SIM105 (no contextlib at start)
                vars(loader)[_EXECUTE] = _Execute(self, loader)
            except TypeError:
                pass  # a class, or without a dictionary: noticed when the module is there

    def execute(self, name: str, import_it: Import) -> None:
        """A watched module is executed now; if that fails it is watched as before."""
        watched = self.waits_for.get(name)
        if watched is None or watched.executes:
            import_it()
            return
        watched.executes = True
        try:
            if watched.around is None:
                import_it()
            else:
                watched.around(import_it)
        finally:
            watched.executes = False
        self._is_there(name, watched)

    def _meet_those_that_came_otherwise(self) -> None:
        for name in list(self.unmet):
            module = sys.modules.get(name)
            watched = self.waits_for.get(name)
            if module is None or watched is None or watched.executes:
                continue
            if type(module).__module__ == "importlib.util":
                continue  # a lazy one: to look at it would import it
            spec = vars(module).get("__spec__")
            if spec is not None and not getattr(spec, "_initializing", False):
                self._is_there(name, watched)

    def _is_there(self, name: str, watched: _Watched) -> None:
        self.unmet.discard(name)
        if watched.once:
            self.waits_for.pop(name, None)
        _finish(watched.after)


class _Execute:
    """In the place of a loader's `exec_module`, until that is called."""

    def __init__(self, finder: _Finder, loader: object) -> None:
        self._finder = finder
        self._loader = loader

    def __call__(self, module: ModuleType) -> None:
        loader = self._loader
        vars(loader).pop(_EXECUTE, None)  # it is as its finder made it from here on
        name = getattr(module.__spec__, "name", module.__name__)
        self._finder.execute(name, lambda: getattr(loader, _EXECUTE)(module))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Execute)  # loaders are compared by all that they have

    __hash__ = None  # type: ignore[assignment]  # nobody asks for it

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (self._loader, _EXECUTE)  # a copy in another process has the plain one


class _OwnPackages:
    """Last on sys.meta_path: what of ours nobody else finds is found beside this file.

    The user's Python may have none of it, and the folder above holds packages of another Python:
    only the two packages that a user's process needs are lent. A package of the user's that is
    called slipstream, and hooks that are installed, are found before this is asked.
    """

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A namespace without a folder, or one of the packages in it."""
        if name == _NAMESPACE:
            spec: ModuleSpec = sys.modules["_frozen_importlib"].ModuleSpec(name, None)
            spec.submodule_search_locations = []
            return spec
        if name in _LENT and not _is_of_the_user(sys.modules.get(_NAMESPACE)):
            return _path_finder().find_spec(name, [os.path.dirname(_OURS)])  # noqa: PTH120 (no pathlib at start)
        return None


def _is_of_the_user(package: ModuleType | None) -> bool:
    """Ours is a namespace, which has no file."""
    return getattr(package, "__file__", None) is not None


def _importing_torch(import_torch: Import) -> None:
    attach = _attach_module()
    if attach is not None:
        attach.torch_is_coming()
    try:
        without_collecting(import_torch)
    finally:
        if attach is not None:
            _finish(attach.launch_line.leave)


def _attach() -> None:
    attach = _attach_module()
    if attach is not None:
        attach.attach()


def _framework_is_there(name: str) -> None:
    attach = _attach_module()
    if attach is not None:
        attach.framework_is_there(name)


def _attach_module() -> ModuleType | None:
    try:
        _look_for_another_slipstream()
        from slipstream.torch_hooks import attach  # noqa: PLC0415 (only once torch is wanted)
    except Exception as error:  # noqa: BLE001 (whatever it is, the user's import of torch goes on)
        _say(f"cannot be loaded: {error!r}")
        return None
    return attach


def _look_for_another_slipstream() -> None:
    """A package of the user's own with that name must not be imported by us."""
    package = sys.modules.get(_NAMESPACE)
    if package is not None:
        origin = getattr(package, "__file__", None)
    else:
        spec = sys.modules["_frozen_importlib"]._find_spec(_NAMESPACE, None)  # noqa: SLF001 (importlib.util takes a millisecond)
        origin = spec and spec.origin
    if origin is not None:
        raise ImportError(f"another package is called slipstream: {origin}")


def _finish(after: Callable[[], None]) -> None:
    try:
        after()
    except Exception as error:  # noqa: BLE001 (the user's import has succeeded)
        _say(f"{error!r}")


def _say(sentence: str) -> None:
    if os.environ.get("SLIPSTREAM_HOOKS_LOG"):
        sys.stderr.write(f"slipstream hooks: {sentence}\n")


def _path_finder() -> type[PathFinder]:
    """As `importlib.machinery` has it, whose import takes half a millisecond."""
    return sys.modules["_frozen_importlib_external"].PathFinder  # type: ignore[no-any-return]  # a module without types


FINDER = _Finder()
"""The one of this process."""
