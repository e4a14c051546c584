# SPDX-License-Identifier: Apache-2.0
"""Attaching to a program, in real processes with real torch: it works or is never noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lua.answering import Answering
from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Directive, Identity, Phase, Request, Role

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
TRAIN = """
import torch
learned = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([learned], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    (learned ** 2).sum().backward()
    optimizer.step()
print("trained", learned.sum().item())
"""
FORKED = (
    TRAIN
    + """
import os
child = os.fork()
if child == 0:
    optimizer.step()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
optimizer.step()
"""
)
BY_HAND = """
from slipstream.torch_hooks.attach import attach, boundary, detach, status
attach()
for _ in range(3):
    boundary()
print(status().attached, status().minibatches)
detach()
boundary()
print(status().attached, status().minibatches)
"""


LATE = """
import os
from slipstream.torch_hooks import pages
from slipstream.torch_hooks.attach import attach, boundary, status
pages._RETRY_NS = 0
attach()
boundary()
print(status().attached)
node = os.environ["SLIPSTREAM_NODE"]
os.link(f"{node}/away.sock", f"{node}/node.sock")
for _ in range(3):
    boundary()
print(status().attached, status().minibatches, os.environ["SLIPSTREAM_CONTROL"])
"""


GIVES_UP = """
from slipstream.torch_hooks.attach import attach, boundary, serve, status
attach()
serve(3, lambda: 1 / 0)
for _ in range(5):
    boundary()
print(status().attached, status().problems)
"""
GIVES_UP_UNDER_A_CAP = """
import torch
from slipstream.torch_hooks import attach
capped = lambda: torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
attach.attach()
attach.boundary()
before = capped()
attach._process.session.boundary = lambda: 1 / 0
attach.boundary()
print(before, capped())
"""


@pytest.fixture
def page(tmp_path: Path) -> blocks.Block:
    """A page for a process of ours."""
    return page_in(tmp_path)


def page_in(folder: Path) -> blocks.Block:
    """The same, in a folder of one's own."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.GUEST, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(folder / "run/blocks", identity, lease_until_ns=1 << 62)


def ran(
    program: str, *words: str, page: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with the import hook, its page and these variables."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")
    }
    environment |= {"PYTHONPATH": str(INJECT), **variables}
    if page:
        environment["SLIPSTREAM_CONTROL"] = str(page)
    return subprocess.run(
        [sys.executable, *words, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_unchanged_program_reports_its_mini_batches(page: blocks.Block) -> None:
    """Nothing but the environment tells it apart, and it prints what it printed before."""
    done = ran(TRAIN, page=page.path)
    page.refresh()
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == ran(TRAIN, SLIPSTREAM_HOOKS="0").stdout
    assert (page.progress.minibatches, page.progress.phase) == (5, Phase.ENDED)


def test_hooks_switched_off_do_nothing(page: blocks.Block) -> None:
    """SLIPSTREAM_HOOKS=0: the page stays as it was."""
    done = ran(TRAIN, page=page.path, SLIPSTREAM_HOOKS="0", SLIPSTREAM_HOOKS_LOG="1")
    page.refresh()
    assert (done.stderr, page.progress.phase) == ("", Phase.UNCLAIMED)


def test_a_program_without_torch_loads_nothing_of_ours(page: blocks.Block) -> None:
    """Only the import hook itself, which is small."""
    program = "import sys; print(sorted(name for name in sys.modules if 'slipstream' in name))"
    assert ran(program, page=page.path).stdout == "[]\n"


def test_torch_keeps_its_own_loader() -> None:
    """Tools that look at a module's loader find what they would have found."""
    program = (
        "import torch, sys; print(type(torch.__loader__).__name__, "
        "type(torch.__spec__.loader).__name__, [type(one).__name__ for one in sys.meta_path])"
    )
    done = ran(program)
    plain = ran(program, SLIPSTREAM_HOOKS="0")
    assert done.stdout.split()[:2] == ["SourceFileLoader", "SourceFileLoader"]
    assert done.stdout.replace("'_Finder', ", "") == plain.stdout


def test_the_sitecustomize_it_hides_still_runs(tmp_path: Path) -> None:
    """As itself: it is what `import sitecustomize` gives."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SITE'] = __file__\n")
    path = f"{INJECT}:{tmp_path}"
    for switch in ("0", "1"):
        done = ran(
            "import os, sitecustomize; print(os.environ['SITE'] == sitecustomize.__file__)",
            PYTHONPATH=path,
            SLIPSTREAM_HOOKS=switch,
        )
        assert (done.stdout, done.stderr) == ("True\n", "")


def test_an_error_of_the_hidden_sitecustomize_is_told_as_ever(tmp_path: Path) -> None:
    """Python prints it and goes on; so do we."""
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('the site is broken')\n")
    done = ran("print('runs')", PYTHONPATH=f"{INJECT}:{tmp_path}")
    assert done.stdout == "runs\n"
    assert "the site is broken" in done.stderr


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b""), "it has 0 bytes"),
        (lambda path: path.write_bytes(b"\0" * 4096), "it begins with b''"),
        (lambda path: path.write_bytes(b"SLIPCTRL\x09".ljust(4096, b"\0")), "of version 9"),
    ],
)
def test_a_page_that_is_none_costs_one_line_of_log(
    page: blocks.Block, damage: object, complaint: str
) -> None:
    """Training goes on, silently unless somebody asked to hear it."""
    assert callable(damage)
    damage(page.path)
    asked = ran(TRAIN, page=page.path, SLIPSTREAM_HOOKS_LOG="1")
    silent = ran(TRAIN, page=page.path)
    assert (silent.stdout, silent.stderr) == (asked.stdout, "")
    assert asked.stdout.startswith("trained")
    lines = [line for line in asked.stderr.splitlines() if "control block: /" in line]
    assert len(lines) == 1
    assert complaint in lines[0]


def test_hooks_that_fail_say_so_and_leave(page: blocks.Block) -> None:
    """Nobody must wait for what will never be done; another page is not asked for."""
    page.direct(Directive(epoch=1, request=Request.CHECKPOINT))
    done = ran(GIVES_UP, page=page.path, SLIPSTREAM_HOOKS_LOG="1")
    page.refresh()
    assert done.stdout == "False {'ZeroDivisionError': 1}\n"
    assert done.stderr.count("\n") == 1
    assert "ZeroDivisionError: boundary: division by zero" in done.stderr
    told = page.progress
    assert (told.phase, told.problems, told.minibatches) == (Phase.ENDED, 1, 1)


def test_hooks_that_fail_under_a_cap_take_it_along(page: blocks.Block) -> None:
    """Nobody would raise it ever again."""
    page.direct(Directive(epoch=1, cap_bytes=1 << 40))
    assert ran(GIVES_UP_UNDER_A_CAP, page=page.path).stdout == "True False\n"


def test_a_log_can_be_a_file(page: blocks.Block, tmp_path: Path) -> None:
    """One that cannot be written is no reason to complain."""
    page.path.unlink()
    log = tmp_path / "hooks.log"
    ran(TRAIN, page=page.path, SLIPSTREAM_HOOKS_LOG=str(log))
    done = ran(TRAIN, page=page.path, SLIPSTREAM_HOOKS_LOG="/proc/nowhere")
    assert "training goes on without it" in log.read_text()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_leaves_its_parents_page_alone(page: blocks.Block) -> None:
    """Its step is its own; the parent counts on."""
    done = ran(FORKED, page=page.path)
    page.refresh()
    assert done.returncode == 0, done.stderr
    assert page.progress.minibatches == 6


def test_a_page_has_one_writer(page: blocks.Block) -> None:
    """A second process that finds it taken trains without it."""
    mine = hook_blocks.claim(str(page.path))
    assert mine
    mine.boundary(100, 0, 0)
    done = ran(TRAIN, page=page.path)
    page.refresh()
    mine.close()
    assert done.returncode == 0
    assert page.progress.minibatches == 100


def test_a_loop_without_torch_marks_its_boundaries_itself(page: blocks.Block) -> None:
    """attach(), boundary(), detach(): after that boundary() does nothing."""
    done = ran(BY_HAND, page=page.path)
    page.refresh()
    assert (done.stdout, done.stderr) == ("True 3\nFalse 0\n", "")
    assert page.progress.phase == Phase.ENDED


@pytest.mark.parametrize(
    ("told", "step"),
    [("3", "3"), (None, "batch"), ("-5", "batch"), ("4294967290", "interactive")],
)
def test_a_task_that_nobody_answered_asks_again(
    page: blocks.Block, tmp_path: Path, told: str | None, step: str
) -> None:
    """In the name of its job, until there is a coordinator; whom it starts asks as others do.

    The mini-batch that it had before it was answered counts.
    Releases of Slurm tell a batch script's step in three ways.
    """
    variables = {"SLIPSTREAM_NODE": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_LOCALID": "2"}
    if told is not None:
        variables["SLURM_STEP_ID"] = told
    answer = f"env SLIPSTREAM_CONTROL={page.path}\nok\n".encode()
    with Answering(tmp_path / "away.sock", lambda _line: answer) as coordinator:
        done = ran(LATE, page=None, **variables)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["False", f"True 4 {page.path}"]
    assert [one.decode() for one in coordinator.asked] == [
        f"v=1 op=block uid={os.getuid()} job=7 step={step} task=2\n"
    ]


def test_a_python_without_slipstream_finds_the_hooks_and_nothing_else(
    page: blocks.Block, tmp_path: Path
) -> None:
    """The user's Python has torch of its own; ours lends it two packages, not its site-packages."""
    (tmp_path / "torch/optim").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("def save(): pass\n")
    (tmp_path / "torch/optim/__init__.py").touch()
    (tmp_path / "torch/optim/optimizer.py").write_text(
        "def register_optimizer_step_pre_hook(hook): return hook\n"
        "register_optimizer_step_post_hook = register_optimizer_step_pre_hook\n"
    )
    program = (
        "import torch, sys, importlib.util as util\n"
        "from slipstream.torch_hooks import attach\n"
        "print(attach.status().attached, util.find_spec('hypothesis'),"
        " util.find_spec('slipstream.sandbox'))"
    )
    # site cannot be left out (-S), it runs sitecustomize; a Python of another home has no packages.
    python = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
    environment = {
        "PYTHONPATH": f"{INJECT}:{tmp_path}",
        "SLIPSTREAM_CONTROL": str(page.path),
        "SLIPSTREAM_HOOKS_LOG": "1",
    }
    done = subprocess.run(
        [python / "bin/python", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True None None\n", "")


def test_another_package_called_slipstream_is_left_alone(tmp_path: Path) -> None:
    """It is the user's; torch is imported as if we were not there."""
    (tmp_path / "slipstream").mkdir()
    (tmp_path / "slipstream/__init__.py").write_text("print('imported')\n")
    done = ran(
        "import torch; print('fine')",
        PYTHONPATH=f"{INJECT}:{tmp_path}",
        SLIPSTREAM_HOOKS_LOG="1",
    )
    assert done.stdout == "fine\n"
    assert "another package is called slipstream" in done.stderr
