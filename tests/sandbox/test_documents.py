# SPDX-License-Identifier: Apache-2.0
"""What the documents tell people to type is typed, on a real cluster; or it is said who types it.

A command that is new in a page fails here until it is run below, or until a test that runs it is
named.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from documents import ROOT, commands, pages
from sandbox.jobs import sbatch
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]

ELSEWHERE = {
    r"make test": "Makefile",
    r"make demo": "tests/sandbox/test_demo.py",
    r"make (up|down)": "tests/sandbox/test_up_and_down.py",
    r"make chaos": "tests/sandbox/test_chaos.py",
    r"make plugins": "tests/sandbox/test_advice_plugin.py",
    r"make deb": "docker/Dockerfile",
    r"make docker-": "docker/cluster",
    r"\.venv/bin/slipstream sandbox (up|run|down)": "tests/sandbox/test_readme.py",
    r"slipstream sandbox (up|down)\b": "tests/sandbox/test_up_and_down.py",
    r"slipstream sandbox run sbatch": "tests/sandbox/test_readme.py",
    r"slipstream dashboard": "tests/unit/test_cli_commands.py",
    r"# (apt|systemctl|echo) ": "tests/docker/test_units.py",
    r"ansible-playbook": "tests/docker/test_ansible.py",
    r"docker exec": "tests/docker/test_cluster.py",
    r"user@controller": "tests/docker/test_cluster.py",
    r"# slipstream setup --apply": "tests/sandbox/test_setup.py",
    r"# slipstream mode --disable": "tests/unit/test_cli_operators.py",
    r"python -m slipstream.torch_hooks.testing": "tests/unit/test_hooks_testing.py",
    r"torchrun ": "tests/unit/test_examples_ddp.py",
    r"pip install build/wheels/": "tests/house/test_wheels.py",
    r"python train\.py": "tests/unit/test_examples_train.py",
}
"""Commands that are run by another test: their beginning, and where."""
REFUSED = {"sbatch --slip-class=best train.sh": "choose guaranteed, shared, opportunistic or auto"}
"""What the page itself shows to fail."""
MAY_BE_REFUSED = ("move", "resize")
"""Of a job that cannot: with a reason, not with a usage message."""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Three nodes, since a page names n3, of four GPUs, since another breaks the fourth."""
    shape = Shape(nodes=3, gpus_per_node=4, racks=1, gpu_memory_mib=1024)
    with Sandbox.started(shape, name="d", home=tmp_path_factory.mktemp("d"), daemons=True) as one:
        yield one


def documented() -> list[str]:
    """Every command of every page, once."""
    return list(dict.fromkeys(line for page in pages() for line in commands(page)))


def is_elsewhere(line: str) -> bool:
    """Whether another test is named for it."""
    return any(re.match(pattern, line) for pattern in ELSEWHERE)


def test_who_is_named_for_a_command_is_there() -> None:
    """And every name is needed."""
    for pattern, path in ELSEWHERE.items():
        assert (ROOT / path).exists(), path
        assert any(re.match(pattern, line) for line in documented()), pattern


def test_what_the_documents_say_can_be_typed(
    box: Sandbox, tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """All that asks a scheduler or submits a job; each does what its page says."""
    doctor = (sys.executable, "-m", "slipstream.cli", "doctor")
    assert eventually(lambda: box.run(*doctor, check=False).returncode == 0)  # all nodes report
    folder = tmp_path / "work"
    shutil.copytree(ROOT / "examples", folder)
    shutil.copy(folder / "ddp.py", folder / "train_ddp.py")
    (folder / "examples").symlink_to(folder)
    (folder / "rates.txt").write_text("0.1\n")
    job = sbatch(box, folder / "out", "--gres=gpu:1", "--slip-class=shared", script="sleep 600")
    typed = [line for line in documented() if not is_elsewhere(line)]
    assert len(typed) > 15
    for line in typed:
        _type(box, line, folder, job)
    box.run("scancel", "--user=root", check=False)


def _type(box: Sandbox, line: str, folder: Path, job: str) -> None:
    bare = re.sub(r"\b(12|4711)\b", job, line.removeprefix("# "))
    if re.match(r"slipstream sandbox", bare):  # this one, not the one of the name that is default
        bare += f" --name d --home {box.layout.root.parent}"
    if re.match(r"slipstream (move|resize)", bare):
        bare += " --yes"
    program = Path(sys.executable).with_name("slipstream")
    bare = re.sub(r"^slipstream\b", shlex.quote(str(program)), bare)
    done = subprocess.run(
        box.argv(("bash", "-c", bare)),
        cwd=folder,
        env={**os.environ, **box.environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = f"{line}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in said
    if line in REFUSED:
        assert done.returncode, said
        assert REFUSED[line] in said
    elif line.split()[1] in MAY_BE_REFUSED:
        assert done.returncode in (0, 1), said
        assert not done.returncode or f"job {job} " in done.stderr, said
    else:
        assert done.returncode == 0, said
