# SPDX-License-Identifier: Apache-2.0
"""The select wrapper on the Slurm of another Debian release: built there, loaded there, followed.

`make wrapper SUITE=trixie`, as root, with debootstrap installed; minutes, so it is no part of
`make test`. The tree stays below ~/.cache/slipstream and is used again. Nothing of it runs outside
of namespaces of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from slipstream.slurm_plugin.advice import Advice, Binding, boot_s
from slipstream.slurm_plugin.advice_board import AdviceBoard
from slipstream.slurm_plugin.wrapper_sign import WrapperSign

ROOT: Final = Path(__file__).parents[2]
ARCHIVE: Final = "http://deb.debian.org/"
PACKAGES: Final = (
    *("ca-certificates", "gcc", "libc6-dev", "dpkg-dev", "make", "patch", "iproute2", "hostname"),
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge"),
)
NEWER_THAN_DEBOOTSTRAP: Final = "trixie"
"""Whose script is good for releases that the installed debootstrap has not heard of."""
HOLDS_S: Final = 1800
LONGEST_S: Final = 600
EXPECTED: Final = (
    "node n1 idle",
    "node n2 idle",
    "slipstream: following the advice at /run/slipstream/advice.board",
    "plain RUNNING n1",
    "required RUNNING n2",
    "preferred RUNNING n2",
    "nowhere PENDING",
    "the sign is given",
)


def main() -> int:
    """Say what was seen; 0 if it is what should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="trixie", help="a release of Debian [trixie]")
    suite = parser.parse_args().suite
    cache = Path(os.environ.get("SLIPSTREAM_CACHE") or Path.home() / ".cache/slipstream")
    tree = cache / f"release-{suite}"
    if not (tree / ".ready").exists():
        _make(tree, suite)
    for part in ("deploy/setup", "slurm_plugin/select"):
        shutil.copytree(ROOT / part, tree / "slipstream" / part, dirs_exist_ok=True)
    seen = _run(tree)
    missing = [line for line in EXPECTED if line not in seen]
    back = [line for line in seen if line.startswith("taken back RUNNING")]
    for line in missing:
        _tell(f"not seen: {line}")
    if not back:
        _tell("not seen: the job without a node started when that was taken back")
    return 1 if missing or not back else 0


def _make(tree: Path, suite: str) -> None:
    if not shutil.which("debootstrap"):
        sys.exit("make wrapper needs debootstrap: apt-get install debootstrap")
    known = Path("/usr/share/debootstrap/scripts")
    script = suite if (known / suite).exists() else NEWER_THAN_DEBOOTSTRAP
    shutil.rmtree(tree, ignore_errors=True)
    tree.parent.mkdir(parents=True, exist_ok=True)
    _do(
        "debootstrap",
        "--variant=minbase",
        suite,
        str(tree),
        f"{ARCHIVE}debian",
        str(known / script),
    )
    lines = [
        f"deb {ARCHIVE}debian {suite} main",
        f"deb {ARCHIVE}debian-security {suite}-security main",
    ]
    (tree / "etc/apt/sources.list").write_text("\n".join([*lines, ""]))
    (tree / "etc/apt/apt.conf.d/99old").write_text('Acquire::Check-Valid-Until "false";\n')
    _do("chroot", str(tree), "apt-get", "-qq", "update")
    install = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y", "install"]
    _do("chroot", str(tree), *install, "--no-install-recommends", *PACKAGES)
    (tree / ".ready").touch()


def _run(tree: Path) -> list[str]:
    """What the script inside says, and whether the wrapper gave its sign meanwhile."""
    run_dir = tree / "run/slipstream"
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(mode=0o755, parents=True)
    inside = tree / "slipstream/inside.sh"
    shutil.copy(Path(__file__).with_name("inside.sh"), inside)
    apart = ["unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
    seen: list[str] = []
    with (
        AdviceBoard(run_dir / "advice.board") as board,
        subprocess.Popen(
            [*apart, "chroot", str(tree), "bash", "/slipstream/inside.sh"],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        guard = threading.Timer(LONGEST_S, process.kill)
        guard.daemon = True
        guard.start()
        until_s = int(boot_s()) + HOLDS_S
        for token, nodes, binding in (
            ("00000000000000b2", ("n2",), Binding.REQUIRE),
            ("00000000000000a2", ("n2",), Binding.PREFER),
            ("0000000000000000", (), Binding.REQUIRE),
        ):
            board.put(Advice(token=token, nodes=nodes, binding=binding, until_boot_s=until_s))
        assert process.stdout
        for line in process.stdout:
            _tell(line.rstrip())
            seen.append(line.strip())
            if line.startswith("nowhere"):
                if WrapperSign(run_dir / "advice.board").is_given():
                    seen.append("the sign is given")
                _wait_for(run_dir / "go-on")
                board.remove("0000000000000000")
    return seen


def _wait_for(path: Path) -> None:
    until_s = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.1)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _do(*command: str) -> None:
    _tell(" ".join(["+", *command]))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
