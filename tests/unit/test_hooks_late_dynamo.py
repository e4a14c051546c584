# SPDX-License-Identifier: Apache-2.0
"""Dynamo as torch has it, and with SLIPSTREAM_DYNAMO=late when it is used.

Programs of their own, each with the import hook; those with a page run with the setting.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Identity, Role

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
TRAIN = """
import sys, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())

def step():
    optimizer.zero_grad()
    loss = model(torch.ones(3, 2)).sum()
    loss.backward()
    optimizer.step()
    return loss.item()

def is_there():
    return "torch._dynamo.eval_frame" in sys.modules

step()
optimizer.load_state_dict(optimizer.state_dict())
"""
USES = {
    "an attribute": "torch._dynamo.reset()",
    "a name": "from torch._dynamo import optimize",
    "a module below": "import torch._dynamo.config as its; assert its is torch._dynamo.config",
    "a module below that does not come with it": "import torch._dynamo.testing",
    "a change": "torch._dynamo.ours = 1; assert torch._dynamo.ours == 1",
    "its names": "assert 'optimize' in dir(torch._dynamo)",
    "its decorator": "assert torch._dynamo.disable(abs)(-1) == 1",
    "a module that comes along": "assert torch.distributed.fsdp.FullyShardedDataParallel",
    "a module that comes along elsewhere": "assert torch.fx.experimental.symbolic_shapes.ShapeEnv",
    "what is nowhere": "assert not hasattr(torch.distributed, 'nothing')",
    "a pickle of it": (
        "import cloudpickle, pickle; use = lambda: torch._dynamo.is_compiling();"
        " assert pickle.loads(cloudpickle.dumps(use))() is False"
    ),
    "a compiler": "assert torch.compile(abs, backend='eager')(torch.tensor(-1)) == 1",
}
EACH_IN_A_FORK = """
import os
for what, use in uses.items():
    if os.fork():
        os.wait()
        continue
    assert not is_there()
    exec(use)
    dynamo = sys.modules["torch._dynamo"]
    assert dynamo is torch._dynamo and type(dynamo) is type(sys)
    for name in ("config", "eval_frame", "decorators"):
        module = sys.modules[f"torch._dynamo.{name}"]
        assert getattr(dynamo, name) is module and module.__spec__.loader.name == module.__name__
    print(f"{what}: {dynamo.disable.__module__} {dynamo.graph_break.__module__} {is_there()}")
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture
def page(tmp_path: Path) -> blocks.Block:
    """A page for a process of ours."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(tmp_path / "run/blocks", identity, lease_until_ns=1 << 62)


def run(program: str, page: blocks.Block | None = None, **variables: str) -> str:
    """What a program prints, with the import hook before it."""
    environment = {**os.environ, "PYTHONPATH": str(INJECT), "SLIPSTREAM_HOOKS_LOG": "1"}
    if page is not None:
        environment |= {"SLIPSTREAM_CONTROL": str(page.path), "SLIPSTREAM_DYNAMO": "late"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_training_that_compiles_nothing_never_imports_dynamo(page: blocks.Block) -> None:
    """Optimizers are made, step and are loaded without it, and do not look for it twice."""
    assert run(f"{TRAIN}\nprint(is_there())", page) == "False"


def test_whoever_uses_dynamo_has_it(page: blocks.Block) -> None:
    """Whatever is asked of it: it is imported once, all of it, and nothing stands in any more."""
    told = run(f"{TRAIN}\nuses = {USES!r}\n{EACH_IN_A_FORK}", page)
    real = "torch._dynamo.decorators torch._dynamo.decorators True"
    assert told.splitlines() == [f"{what}: {real}" for what in USES]


def test_a_step_that_is_compiled_later_learns_the_same(page: blocks.Block) -> None:
    """Optimizers whose functions were given what stood in are left alone by Dynamo all the same."""
    compiled = f"{TRAIN}\nstep = torch.compile(step, backend='eager')\nprint([step(), step()])"
    seeded = compiled.replace("model =", "torch.manual_seed(1); model =")
    assert run(seeded, page) == run(seeded, page, SLIPSTREAM_DYNAMO="")


def test_a_program_that_imports_dynamo_has_it_at_once(page: blocks.Block) -> None:
    """Only what torch's optimizers import is put off."""
    program = "import sys, torch, torch._dynamo\nprint('torch._dynamo.eval_frame' in sys.modules)"
    assert run(program, page) == "True"


@pytest.mark.parametrize("setting", ["", "now"])
def test_without_the_setting_nothing_of_torch_is_changed(page: blocks.Block, setting: str) -> None:
    """The first optimizer brings Dynamo, and torch has all that it has without us."""
    program = (
        f"{TRAIN}\nprint(is_there(), type(sys.modules['torch._dynamo']), len(dir(torch)),"
        " len(vars(torch.distributed)), sorted(name for name in sys.modules if 'torch' in name"
        " and 'slipstream' not in name))"
    )
    plain = run(program, page, SLIPSTREAM_HOOKS="0")
    assert plain.startswith("True <class 'module'>")
    assert run(program, page, SLIPSTREAM_DYNAMO=setting) == plain


def test_a_process_without_a_page_imports_as_ever() -> None:
    """What is no job of ours is not made quicker either."""
    assert run(f"{TRAIN}\nprint(is_there())") == "True"


def test_an_import_that_fails_fails_where_it_is_wanted_and_may_be_tried_again(
    page: blocks.Block,
) -> None:
    """As any import: nothing is left of it."""
    told = run(
        f"{TRAIN}\nsys.modules['torch._dynamo.config'] = None\n"
        "try:\n    torch._dynamo.reset()\nexcept ImportError:\n    print('failed')\n"
        "del sys.modules['torch._dynamo.config']\n"
        "torch._dynamo.reset()\nprint(is_there())",
        page,
    )
    assert told.split() == ["failed", "True"]
