# SPDX-License-Identifier: Apache-2.0
"""The import hook: waits until a user's program imports torch, then attaches to it.

Python runs this file at its start because its folder stands first on PYTHONPATH. It imports nothing
that Python has not imported already, so that a program without torch hardly notices; it does
nothing with SLIPSTREAM_HOOKS=0; then it steps aside for the sitecustomize it hides, if there is
one. Nothing in here may raise into the program, but for what that other sitecustomize raises.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing's, which would take longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec, PathFinder
    from types import ModuleType

    Around = Callable[[Callable[[], None]], None]

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (no pathlib at start)


class _Watcher:
    """First on sys.meta_path until a module is looked for, then gone."""

    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._around)  # type: ignore[assignment]  # a duck
                return spec
        return None


class _Loader:
    """The module's own loader with something around it; then the module has its own back."""

    def __init__(self, loader: Loader, around: Around) -> None:
        self._loader = loader
        self._around = around

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._around(lambda: self._loader.exec_module(module))


def watch(name: str, around: Around) -> None:
    """Have `around` called in place of the module's import; it must call what it is given."""
    sys.meta_path.insert(0, _Watcher(name, around))


def wait_for_torch() -> None:
    """Attach when the program imports torch; `slipstream.pth` calls this, too."""
    waits = any(getattr(finder, "_name", "") == "torch" for finder in sys.meta_path)
    if os.environ.get("SLIPSTREAM_HOOKS") != "0" and "torch" not in sys.modules and not waits:
        watch("torch", _attaching)


def _attaching(import_torch: Callable[[], None]) -> None:
    attach = _attach_module()
    if attach:
        attach.torch_is_coming()
    try:
        without_collecting(import_torch)
    finally:
        if attach:
            attach.launch_line.leave()
    if attach:
        attach.attach()


def without_collecting(import_all: Callable[[], None]) -> None:
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


def _attach_module() -> ModuleType | None:
    try:
        _make_importable()
        from slipstream.torch_hooks import attach  # noqa: PLC0415 (only once torch is wanted)
    except Exception as error:  # noqa: BLE001 (whatever it is, the user's import of torch goes on)
        if os.environ.get("SLIPSTREAM_HOOKS_LOG"):
            sys.stderr.write(f"slipstream hooks: cannot be loaded: {error!r}\n")
        return None
    return attach


def _make_importable() -> None:
    """Let `slipstream.torch_hooks` be found from here, and nothing else that is installed here.

    The user's Python may have none of it, and the folder above holds packages of another Python.
    """
    ours = os.path.dirname(os.path.dirname(_FOLDER))  # noqa: PTH120 (no pathlib at start)
    spec = _path_finder().find_spec("slipstream")
    if spec is None:
        if "slipstream" not in sys.modules:
            package = type(sys)("slipstream")
            package.__path__ = [ours]
            sys.modules["slipstream"] = package
    elif spec.origin is not None:
        raise ImportError(f"another package is called slipstream: {spec.origin}")
    elif (
        _path_finder().find_spec("slipstream.torch_hooks", spec.submodule_search_locations) is None
    ):
        import slipstream  # noqa: PLC0415 (a namespace: importing it runs nothing)

        slipstream.__path__.append(ours)


def _path_finder() -> type[PathFinder]:
    """As `importlib.machinery` has it, whose import takes half a millisecond."""
    return sys.modules["_frozen_importlib_external"].PathFinder  # type: ignore[no-any-return]  # a module without types


def _run_hidden_sitecustomize() -> None:
    """Run the sitecustomize that would have run without us, in our place."""
    elsewhere = [path for path in sys.path if os.path.abspath(path) != _FOLDER]  # noqa: PTH100 (no pathlib at start)
    spec = _path_finder().find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # and not when a tool imports it as part of the package
    wait_for_torch()
    _run_hidden_sitecustomize()
