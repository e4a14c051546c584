# SPDX-License-Identifier: Apache-2.0
"""Compiles what a sandbox needs in C: once per source text, whole or not at all."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from slipstream.sandbox.errors import SandboxError


@dataclass(frozen=True, slots=True)
class Library:
    """A shared object and what it is made of."""

    kind: str
    """The first word of its folder's name."""
    title: str
    file_name: str
    flags: tuple[str, ...]
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    include_folders: tuple[Path, ...] = ()


def built(library: Library, cache_folder: Path) -> Path:
    """The library's file, in a folder of its own named after the text it was made of."""
    digest = hashlib.sha256("\0".join(library.flags).encode())
    for path in (*library.sources, *library.headers):
        digest.update(path.read_bytes())
    folder = cache_folder / f"{library.kind}-{digest.hexdigest()[:16]}"
    if not (folder / library.file_name).exists():
        cache_folder.mkdir(parents=True, exist_ok=True)
        _build(library, folder)
    return folder / library.file_name


def _build(library: Library, folder: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise SandboxError(
            f"{library.title} needs a C compiler and there is no `cc` on PATH: "
            "install one (Debian: apt-get install gcc libc6-dev)"
        )
    draft = Path(tempfile.mkdtemp(prefix=f".{library.kind}-", dir=folder.parent))
    try:
        target = str(draft / library.file_name)
        included = [f"-I{one}" for one in library.include_folders]
        argv = [compiler, *library.flags, *included, "-o", target, *map(str, library.sources)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SandboxError(f"{compiler} could not build {library.title}:\n{done.stderr}")
        draft.chmod(0o755)  # processes of every user load it
        _rename_unless_there(draft, folder, library.file_name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _rename_unless_there(draft: Path, folder: Path, file_name: str) -> None:
    try:
        draft.rename(folder)
    except OSError:
        if not (folder / file_name).exists():  # else somebody was first, with the same text
            raise
