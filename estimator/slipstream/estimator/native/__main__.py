# SPDX-License-Identifier: Apache-2.0
"""Building the estimator's native code: `python -m slipstream.estimator.native build`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.estimator import native

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Build what is missing; the path of the library is printed."""
    if list(argv) != ["build"]:
        sys.stderr.write("usage: python -m slipstream.estimator.native build\n")
        return 2
    try:
        path = build()
    except native.NativeError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


def build() -> Path:
    """The library, compiled once per source text; raises NativeError."""
    path = native.library_path()
    if not path.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise native.NativeError(
                "there is no C compiler `cc` on PATH: install one (Debian: gcc libc6-dev)"
            )
        _compile(compiler, path)
    native.load()
    return path


def _compile(compiler: str, path: Path) -> None:
    """Into a draft that is then renamed: whoever loads it finds all of it or nothing."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".forest-", dir=native.FOLDER)
    except OSError as error:
        raise native.NativeError(f"the library's folder cannot be written: {error}") from error
    os.close(descriptor)
    draft = Path(name)
    try:
        argv = [compiler, *native.FLAGS, "-o", name, str(native.SOURCE)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise native.NativeError(f"{compiler} could not build the forest:\n{done.stderr}")
        draft.chmod(0o755)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
