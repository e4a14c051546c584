# SPDX-License-Identifier: Apache-2.0
"""Torch is as it is without us: a program with the import hook and a page finds all of it."""

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
model(torch.ones(3, 2)).sum().backward()
optimizer.step()
"""
WHAT_TORCH_HAS = (
    TRAIN
    + """
modules = {name for name in sys.modules if name.partition(".")[0] in ("torch", "sympy")}
print(sorted((name, type(sys.modules[name]).__name__) for name in modules))
print(sorted((name, one) for name in modules for one in vars(sys.modules[name])))
print(len(torch.serialization.get_safe_globals()), len(torch._C._dispatch_get_all_op_names()))
"""
)
USES = {
    "DTensor": "from torch.distributed.tensor import DTensor; assert DTensor is not model",
    "FSDP": "assert torch.distributed.fsdp.FullyShardedDataParallel",
    "a function that uses Dynamo, pickled": (
        "import cloudpickle, pickle; use = lambda: torch._dynamo.is_compiling();"
        " assert pickle.loads(cloudpickle.dumps(use))() is False"
    ),
    "a nested tensor": (
        "import io; kept = io.BytesIO();"
        " torch.save(torch.nested.nested_tensor([torch.ones(2)] * 2, layout=torch.jagged), kept);"
        " kept.seek(0); assert len(torch.load(kept, weights_only=True).unbind()) == 2"
    ),
    "Dynamo in threads": (
        "import concurrent.futures, importlib; pool = concurrent.futures.ThreadPoolExecutor(4);"
        " names = ['_dynamo.config', '_dynamo.eval_frame', '_inductor.config', '_dynamo'];"
        " assert list(pool.map(lambda one: importlib.import_module('torch.' + one), names))"
    ),
    "a change": "torch._dynamo.config.suppress_errors = True",
    "a compiler": "assert torch.compile(abs, backend='eager')(torch.tensor(-1)) == 1",
}
EACH_IN_A_FORK = """
import os
for what, use in uses.items():
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    try:
        exec(use)
        print(what)
    except Exception as error:
        print(what, repr(error))
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


def run(program: str, page: blocks.Block, **variables: str) -> str:
    """What a program prints, with the import hook before it."""
    told = {"PYTHONPATH": str(INJECT), "SLIPSTREAM_CONTROL": str(page.path), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_training_with_hooks_has_the_same_torch(page: blocks.Block) -> None:
    """The same modules of the same types with the same names in them, and no other operators."""
    with_hooks = run(WHAT_TORCH_HAS, page).splitlines()
    without = run(WHAT_TORCH_HAS, page, SLIPSTREAM_HOOKS="0").splitlines()
    assert with_hooks == without


def test_what_torch_offers_works_after_the_first_optimizer(page: blocks.Block) -> None:
    """Programs that failed while a stand-in took Dynamo's place (decision 0040)."""
    told = run(f"{TRAIN}\nuses = {USES!r}\n{EACH_IN_A_FORK}", page)
    assert told.splitlines() == list(USES)
