# SPDX-License-Identifier: Apache-2.0
"""What a sandbox that is down has left on this machine: nothing, or it is named here.

Looks at the machine and not at our own records, so that it also finds what we forgot to record.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipstream.sandbox.layout import Layout


def leftovers(layout: Layout) -> list[str]:
    """One line for each process, file, mount or reserved port that should be gone."""
    return [*_files(layout), *_processes(layout), *_mounts(layout)]


def _files(layout: Layout) -> Iterator[str]:
    for path in (layout.root, layout.shared_memory):
        if path.exists():
            yield f"file {path}"


def _processes(layout: Layout) -> Iterator[str]:
    needles = [os.fsencode(layout.root), os.fsencode(layout.shared_memory)]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # A zombie's command line is empty: it holds nothing but its number.
            command = (entry / "cmdline").read_bytes()
            text = (entry / "environ").read_bytes() + b"\0" + command
            cwd = os.fsencode((entry / "cwd").readlink())
        except OSError:
            continue
        if command and any(needle in part for needle in needles for part in (text, cwd)):
            words = command.replace(b"\0", b" ").decode(errors="replace").strip()
            yield f"process {entry.name}: {words[:100]}"


def _mounts(layout: Layout) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(layout.root) in line or str(layout.shared_memory) in line:
            yield f"mount {line.split()[4]}"
