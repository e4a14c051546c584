# SPDX-License-Identifier: Apache-2.0
"""Files written so that it can be taken back: what was there is kept, and what we wrote is known.

The record is on disk before the first file is changed: killed at any moment, `undo` puts back what
was there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.cli.setup.edits import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RECORD: Final = "slipstream-setup.json"
_KEPT: Final = ".before-slipstream"


def apply(folder: Path, texts: Mapping[Path, str], installed: Iterable[Path] = ()) -> None:
    """Write these files; the record of it, and of what else was `installed`, is in `folder`."""
    record = _record(folder)
    for path in installed:
        record[str(path)] = {"kept": "", "written": _digest(path.read_bytes())}
    for path, text in texts.items():
        folder_stays = path.parent.exists()
        told = record.setdefault(str(path), {"kept": _keep(path), "folder_stays": folder_stays})
        told["written"] = _digest(text.encode())
    _write(folder / RECORD, json.dumps(record, indent=1) + "\n")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, text)


def undo(folder: Path) -> list[Path]:
    """Put back what was there before; nothing is touched if one of them was changed since."""
    record = _record(folder)
    if not record:
        raise SetupError(f"nothing to take back: there is no {folder / RECORD}")
    changed = [path for path, told in record.items() if not _as_we_left_it(Path(path), told)]
    if changed:
        raise SetupError(
            f"changed by somebody since: {', '.join(changed)}. Nothing was taken back; what was "
            f"there before is beside each, with the ending {_KEPT}"
        )
    for name, told in record.items():
        path = Path(name)
        if told["kept"]:
            Path(told["kept"]).replace(path)
        else:
            path.unlink(missing_ok=True)
            if not told.get("folder_stays"):
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # the last of ours in it
    (folder / RECORD).unlink()
    return [Path(path) for path in record]


def _record(folder: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((folder / RECORD).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SetupError(f"{folder / RECORD} cannot be read: {error}") from error
    return told


def _keep(path: Path) -> str:
    """Where a copy of a file is; empty if there is no file."""
    if not path.exists():
        return ""
    kept = path.with_name(path.name + _KEPT)
    shutil.copy2(path, kept)
    return str(kept)


def _as_we_left_it(path: Path, told: Mapping[str, Any]) -> bool:
    there = _digest(path.read_bytes()) if path.exists() else None
    before = _digest(Path(told["kept"]).read_bytes()) if told["kept"] else None
    return there in (told["written"], before)  # the latter: we were killed before we wrote it


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, text: str) -> None:
    """Whole or not at all, with the rights of what it replaces."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, draft)
            there = path.stat()
            os.chown(draft, there.st_uid, there.st_gid)
        else:
            Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
