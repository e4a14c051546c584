# SPDX-License-Identifier: Apache-2.0
"""A checkpoint over real NFS: nfs-ganesha serves, libnfs writes and reads, in a network of its own.

By the programs that deploy/setup/unpack.sh has fetched; they are not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpoint_rig import FIRST, Training, equal, saved
from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.checkpoint.restoring import restore

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).parents[2] / "build/tools"
PATH = ":".join(f"{ROOT}/{folder}" for folder in ("usr/bin", "usr/sbin", "sbin"))
LIBRARIES = ROOT / "usr/lib/x86_64-linux-gnu"
CONF = """
NFS_CORE_PARAM {{
  NFS_Port = 20490; MNT_Port = 20491; Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false;
  Plugins_Dir = "{plugins}";
}}
NFSv4 {{
  RecoveryBackend = fs; RecoveryRoot = "{folder}"; IdmapConf = "{folder}/idmapd.conf";
  Only_Numeric_Owners = true; UseGetpwnam = true;
}}
EXPORT {{
  Export_Id = 1; Path = "{folder}/export"; Pseudo = /export; Access_Type = RW; Protocols = 3;
  Squash = No_Root_Squash; SecType = sys, none; Transports = TCP; FSAL {{ Name = VFS; }}
}}
"""
SCRIPT = r"""
set -e
ip link set lo up
mount -t tmpfs none /run && mkdir /run/rpcbind
if ! id _rpc > /dev/null 2>&1; then  # unpacked only: what the package would have made
    (cat /etc/passwd; echo '_rpc:x:0:0::/run/rpcbind:/bin/false') > "$FOLDER/passwd"
    mount --bind "$FOLDER/passwd" /etc/passwd
fi
rpcbind -f & RPC=$!
url="nfs://127.0.0.1$FOLDER/export"
how="nfsport=20490&mountport=20491&version=3"
for try in $(seq 50); do rpcinfo -p > /dev/null 2>&1 && break; sleep 0.1; done
ganesha.nfsd -F -f "$FOLDER/conf" -L "$FOLDER/log" -p "$FOLDER/pid" & SERVER=$!
trap 'kill $SERVER $RPC' EXIT
for try in $(seq 100); do
    nfs-ls "$url?$how" > /dev/null 2>&1 && break
    sleep 0.1
done
while read -r name; do
    nfs-cp "$FOLDER/here/$name" "$url/$name?$how"
    nfs-cp "$url/$name?$how" "$FOLDER/there/$name"
done
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a filesystem with file handles; short, for its name is in a URL."""
    needed = ("ganesha.nfsd", "nfs-cp", "rpcbind")
    missing = [name for name in needed if not shutil.which(name, path=PATH)]
    if missing or os.geteuid() != 0:
        said = f"no {', '.join(missing)}: deploy/setup/unpack.sh build/tools"
        pytest.skip(said if missing else "only root may have a network")
    with tempfile.TemporaryDirectory(prefix="slip-nfs-", dir="/dev/shm") as name:
        yield Path(name)


def test_a_checkpoint_goes_over_nfs_to_the_bit(folder: Path) -> None:
    """Written to a server by one node and read by another, it is gone on from."""
    training = Training(width=600)
    saved(folder / "here", FIRST, training=training)
    for spare in (folder / "here").glob(".spare*"):
        spare.unlink()
    for place in ("export", "there"):
        (folder / place / str(FIRST)).mkdir(parents=True)
    plugins = LIBRARIES / "ganesha"
    (folder / "conf").write_text(CONF.format(plugins=plugins, folder=folder))
    (folder / "idmapd.conf").write_text("[General]\nDomain = localdomain\n")
    files = [one for one in (folder / "here").rglob("*") if one.is_file()]
    names = "".join(f"{one.relative_to(folder / 'here')}\n" for one in files)
    found = {
        "PATH": f"{PATH}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{LIBRARIES}:{ROOT}/usr/lib/ganesha",
    }
    done = subprocess.run(
        [str(shutil.which("unshare")), "--net", "--mount", "bash", "-c", SCRIPT],
        env={**os.environ, **found, "FOLDER": str(folder)},
        input=names,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.returncode, (done.stderr, (folder / "log").read_text()[-2000:])
    assert sum(one.stat().st_size for one in (folder / "export").rglob("*")) > 1 << 20
    assert generations.complete(folder / "there") == [FIRST]
    other = Training(seed=2, width=600)
    problems: list[str] = []
    assert restore(folder / "there", other.parts, problems.append)
    assert equal(other.numbers(), training.numbers())
    assert problems == []
