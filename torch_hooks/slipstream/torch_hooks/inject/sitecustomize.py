# SPDX-License-Identifier: Apache-2.0
"""Starts the import hook in every Python of a job, then runs the sitecustomize that it hides.

Python runs this file at its start because its folder stands first on PYTHONPATH. That can be any
Python from 2.7 on, so this file keeps to the grammar and the modules that all of them have. Below
3.9 the hooks cannot run: then this file only runs the hidden sitecustomize. Nothing in here may
raise into the program, except what the hidden sitecustomize raises.
"""

import os
import sys

_OLDEST = (3, 9)
_this_module = None
_FOLDER = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 (no pathlib in Python 2)


def _start_import_hook():  # type: ignore[no-untyped-def]  # noqa: ANN202 (Python 2 has no annotations)
    """Run `import_hook.py` of the package: found by its path, since it may not be on sys.path."""
    path = os.path.join(os.path.dirname(_FOLDER), "import_hook.py")  # noqa: PTH118, PTH120 (the same)
    try:
        machinery = sys.modules["_frozen_importlib_external"]
        hook = type(sys)("slipstream_import_hook")
        hook.__file__ = path
        machinery.SourceFileLoader(hook.__name__, path).exec_module(hook)
        hook.start()
    except Exception as error:  # noqa: BLE001 (whatever it is, the user's program starts)
        if os.environ.get("SLIPSTREAM_HOOKS_LOG"):
            sys.stderr.write("slipstream hooks: no import hook: %r\n" % (error,))  # noqa: UP031 (Python 2)


def _run_hidden_sitecustomize():  # type: ignore[no-untyped-def]  # noqa: ANN202 (the same)
    """Run the sitecustomize that Python would have run without ours, in our place."""
    elsewhere = [path for path in sys.path if os.path.realpath(path) != _FOLDER]
    if sys.version_info >= (3, 5):  # noqa: UP036 (this file is for all of them)
        spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(__name__, elsewhere)
        if spec is not None and spec.loader is not None:
            module = sys.modules["_frozen_importlib"].module_from_spec(spec)
            sys.modules[__name__] = module
            spec.loader.exec_module(module)
        return
    import imp  # noqa: PLC0415 (these Pythons have it, later ones do not)

    try:
        found = imp.find_module(__name__, elsewhere)
    except ImportError:
        return
    # Python 2 empties a module that nobody refers to: this one is still running.
    global _this_module  # noqa: PLW0603 (the same)
    _this_module = sys.modules.pop(__name__)
    try:
        imp.load_module(__name__, *found)
    finally:
        if found[0] is not None:
            found[0].close()


if __name__ == "sitecustomize":  # and not when a tool reads it as part of the package
    if sys.version_info >= _OLDEST:
        _start_import_hook()  # type: ignore[no-untyped-call]
    _run_hidden_sitecustomize()  # type: ignore[no-untyped-call]
