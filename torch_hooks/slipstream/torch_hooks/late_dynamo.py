# SPDX-License-Identifier: Apache-2.0
"""Where a site wants it: Dynamo is imported when it is used, not because there is an optimizer.

Torch's optimizers import `torch._dynamo` to tell a compiler that is not there to leave them alone:
hundreds of modules, sympy among them, as long again as the import of torch itself. A program that
compiles nothing needs two functions of it, of which one does nothing and the other gives back what
it was given. So these stand in its place until anything else of it is asked for, be it an
attribute, a module below it or a change; then it is imported as ever, into the same module.

Only the optimizers' own import is put off: a program that imports Dynamo itself has it at once.
A program can tell (decision 0040 lists how), so this is off unless SLIPSTREAM_DYNAMO is `late`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec

    Function = Callable[..., Any]

VARIABLE = "SLIPSTREAM_DYNAMO"
"""`late`: Dynamo is imported when it is used; else when torch's optimizers import it."""
_DYNAMO = "torch._dynamo"
_DECORATOR = "torch._compile"
_OPTIMIZERS = frozenset({_DECORATOR, "torch.optim.optimizer"})
_CACHE = "__dynamo_disable"
"""Where torch's decorator keeps what it was given for a function."""
_MACHINERY = ("importlib.", "_frozen_importlib", "slipstream.torch_hooks.")
_HIDDEN = ("__path__",)
"""Who imports a module below asks for this first."""
_COMPANY = (
    *("torch.distributed", "torch.distributed.algorithms", "torch.nn.utils", "torch.utils"),
    *("torch.fx.experimental", "torch.fx.passes", "torch._functorch"),
)
"""Packages that have more in them once Dynamo is there, without having been asked for it."""
_WANTED = (*_HIDDEN, "__all__", "__getattr__")
"""Who looks through all modules for any other such name does not mean this one."""


def may_wait(environment: Mapping[str, str]) -> bool:
    """Whether the site wants this, and it is an optimizer that imports Dynamo now."""
    return environment.get(VARIABLE) == "late" and _importer() in _OPTIMIZERS


def imported() -> ModuleType | None:
    """Dynamo, if it is there; who asks by this does not bring it."""
    module = sys.modules.get(_DYNAMO)
    return None if isinstance(module, _Absent) else module


def put_off(import_dynamo: Callable[[], None]) -> None:
    """In place of the import: let `torch._dynamo` be one that is imported when it is used."""
    module = sys.modules[_DYNAMO]
    late = _Late(module, import_dynamo)
    vars(module)[_LATE] = late
    object.__setattr__(module, "__class__", _Absent)
    late.stand_in()
    sys.meta_path.insert(0, late)


class _Late:
    """What stands in the module's place, and how that ends."""

    def __init__(self, module: ModuleType, import_dynamo: Callable[[], None]) -> None:
        self._module = module
        self._import = import_dynamo
        self._loading = False
        self._loaded = False
        self._given: dict[int, tuple[Function, Function]] = {}
        """By the function: what was given in its place."""
        self._hidden: dict[str, Any] = {}
        self._company: list[ModuleType] = []

    def stand_in(self) -> None:
        """For what the optimizers ask of it."""
        names = vars(self._module)
        self._hidden = {name: names.pop(name) for name in _HIDDEN if name in names}
        names.update({"graph_break": _graph_break, "disable": self._disable})
        company = [sys.modules[name] for name in _COMPANY if name in sys.modules]
        self._company = [one for one in company if _ASKED not in vars(one)]
        for one in self._company:
            vars(one)[_ASKED] = self._asked_of(one)

    def load(self) -> None:
        """Import it after all, once; who comes meanwhile waits, as for any import."""
        # The lock that an import of it would take: it knows of those of the modules below.
        with sys.modules["_frozen_importlib"]._ModuleLockManager(_DYNAMO):  # noqa: SLF001 (importlib's own)
            if not self._loaded and not self._loading:
                self._loading = True
                self._stand_aside()
                self._load()
                self._loaded = True

    def _asked_of(self, package: ModuleType) -> Function:
        """Who asks a package for what would have come with Dynamo brings it, and has it."""

        def asked(name: str) -> object:
            if not name.startswith("__"):
                self.load()
            if name not in vars(package):
                raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
            return vars(package)[name]

        return asked

    def _load(self) -> None:
        spec = self._module.__spec__
        try:
            spec._initializing = True  # type: ignore[union-attr]  # noqa: SLF001 (as importlib does)
            self._import()
        except BaseException:
            # As an import that failed: the next one begins anew.
            sys.modules.pop(_DYNAMO, None)
            vars(sys.modules["torch"]).pop("_dynamo", None)
            raise
        finally:
            spec._initializing = False  # type: ignore[union-attr]  # noqa: SLF001 (the same)

    def _stand_aside(self) -> None:
        names = vars(self._module)  # what stands in stays: the real one is put into its place
        names.update(self._hidden)
        object.__setattr__(self._module, "__class__", ModuleType)
        names.pop(_LATE, None)
        for one in self._company:
            vars(one).pop(_ASKED, None)
        for function, plain in self._given.values():
            if getattr(function, _CACHE, None) is plain:
                delattr(function, _CACHE)  # it asks again, and is given a real one

    def _disable(self, function: Any = None, *words: Any, **named: Any) -> Any:  # noqa: ANN401 (torch's)
        """Torch's decorator wants a function that Dynamo leaves alone: without Dynamo, any is."""
        if sys._getframe(1).f_globals.get("__name__") != _DECORATOR or function is None:  # noqa: SLF001 (there is no other way)
            self.load()
            return self._module.disable(function, *words, **named)

        def plain(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 (whatever it takes)
            return function(*arguments, **keywords)

        # An older torch asks each time.
        return self._given.setdefault(id(function), (function, plain))[1]

    # --- for importlib: modules below it ------------------------------------------------------

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module below it may have come with it, since it was looked for: it comes but once."""
        del path
        if not self._loaded or not name.startswith(f"{_DYNAMO}."):
            return None
        there = sys.modules.get(name)
        if there is None or target is not None:
            return None
        from importlib.machinery import ModuleSpec  # noqa: PLC0415 (nobody needs it before)

        return ModuleSpec(name, _There(there))  # type: ignore[arg-type]  # a duck


class _There:
    """Loads what is loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """The one that there is."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It was: it only has its own spec back, whatever it says to changes."""
        vars(module)["__spec__"] = self._spec


_LATE = "__slipstream_late__"
_ASKED = "__getattr__"


class _Absent(ModuleType):
    """A module that is imported as soon as it is asked for what it has not, or changed."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name not in _WANTED:
            raise AttributeError(f"module {_DYNAMO!r} has no attribute {name!r}")
        return getattr(_loaded(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_loaded(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_loaded(self), name)

    def __dir__(self) -> Iterable[str]:
        return dir(_loaded(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)  # as cloudpickle has it for modules


def _loaded(module: ModuleType) -> ModuleType:
    late = vars(module).get(_LATE)
    if late is not None:
        late.load()
    return module


def _graph_break(*_words: object, **_named: object) -> None:
    """As Dynamo's own, which does nothing unless it is compiled."""


def _importer() -> str:
    """The module whose import led here."""
    frame = sys._getframe(1)  # noqa: SLF001 (there is no other way)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(_MACHINERY):
            return name
        frame = frame.f_back  # type: ignore[assignment]  # the last one has none
    return ""
