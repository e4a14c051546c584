# SPDX-License-Identifier: Apache-2.0
"""Training programs as their users write them, and how each is started.

The scripts are in `scripts/`. None of them knows of Slipstream, but for the two lines where its
name says so. `make -s bench NAME=programs` runs all of them, `tests/sandbox/test_programs.py` some.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).with_name("scripts")
_TORCHRUN: Final = "torchrun --standalone --nproc-per-node=$SLURM_GPUS_ON_NODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program and the line that starts it in a batch script, in the folder of the scripts."""

    name: str
    line: str
    packages: tuple[str, ...] = ()
    """What it imports beside torch and the packages of the project's own environment."""
    flags: tuple[str, ...] = ()
    """Options of sbatch beside the class and the GPUs."""
    gpus: int = 1
    restorable: bool = False
    """Whether it says that it can be moved: by the two lines or by a framework's checkpoints."""
    from_login_node: bool = False
    """Whether its line runs on the login node and submits the jobs itself."""
    needs_old_python: bool = False
    """Whether it is for a Python below 3.9, which PROGRAM_OLD_PYTHON names."""
    reason: str = ""
    """Of a program that the hooks cannot attach to: what `slipstream why` must say of it."""


def _python(name: str, line: str, *packages: str, restorable: bool = False) -> Program:
    return Program(name=name, line=f"python {line}", packages=packages, restorable=restorable)


ATTACHED: Final = (
    _python("plain", "plain.py"),
    _python("find-spec", "find_spec.py"),
    _python("thread", "thread.py"),
    _python("module", "-m package"),
    Program(name="shebang", line="./shebang.py"),
    Program(name="wrapper", line="./wrapper.sh python plain.py"),
    Program(name="own-pythonpath-kept", line="PYTHONPATH=/opt/mine:$PYTHONPATH python plain.py"),
    Program(name="srun", line="srun python plain.py"),
    _python("accumulation", "accumulation.py"),
    _python("lbfgs", "lbfgs.py"),
    _python("gan", "gan.py"),
    _python("rnn", "rnn.py"),
    _python("compiled", "compiled.py"),
    _python("autograd", "autograd.py"),
    _python("vision", "vision.py"),
    _python("by-hand", "by_hand.py"),
    _python("hogwild", "hogwild.py"),
    _python("forked", "forked.py"),
    _python("spawn-ddp", "spawn_ddp.py"),
    Program(name="torchrun-ddp", line=f"{_TORCHRUN} ddp.py", gpus=2),
    Program(name="torchrun-fsdp", line=f"{_TORCHRUN} fsdp.py", gpus=2),
    Program(
        name="torchrun-two-nodes",
        line="srun torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d "
        "--rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=127.0.0.1:$((20000 + SLURM_JOB_ID % 20000)) "
        "ddp.py",
        flags=("--nodes=2", "--ntasks-per-node=1"),
    ),
    Program(name="srun-ddp", line="srun python srun_ddp.py", gpus=2, flags=("--ntasks=2",)),
    _python("no-trainer", "no_trainer.py", "datasets"),
    _python("ignite", "ignite_loop.py", "ignite"),
    _python("skorch", "skorch_net.py", "skorch"),
    _python("lora", "lora.py", "peft"),
    _python("optuna", "search_optuna.py", "optuna"),
    _python("ray-tune", "search_ray.py", "ray"),
    _python("notebook", "notebook.py", "nbclient", "ipykernel"),
    Program(
        name="submitit",
        line="python launch_submitit.py",
        packages=("submitit",),
        from_login_node=True,
    ),
    Program(
        name="hydra",
        line="python launch_hydra.py --multirun +lr=0.01,0.001 hydra/launcher=submitit_slurm "
        "hydra.sweep.dir=$PROGRAM_FOLDER "
        "+hydra.launcher.additional_parameters=$PROGRAM_HYDRA_FLAGS",
        packages=("hydra", "hydra_plugins.hydra_submitit_launcher"),
        from_login_node=True,
    ),
    _python("lines", "lines.py", restorable=True),
    _python("lines-before-torch", "lines_first.py", restorable=True),
    _python("lines-mnist", "lines_mnist.py", restorable=True),
    _python("lines-workers", "lines.py --workers --augment", restorable=True),
    _python("lines-persistent", "lines.py --persistent", restorable=True),
    _python("lines-accumulation", "lines_accumulation.py", restorable=True),
    _python("lines-amp", "lines_amp.py", restorable=True),
    _python("lines-ema", "lines_ema.py", restorable=True),
    _python("lines-gan", "lines_gan.py", restorable=True),
    _python("lines-lbfgs", "lines_lbfgs.py", restorable=True),
    _python("lines-rnn", "lines_rnn.py", restorable=True),
    _python("lines-compiled", "lines_compiled.py", restorable=True),
    _python("lines-autograd", "lines_autograd.py", restorable=True),
    _python("lines-own-checkpoints", "lines_own.py", restorable=True),
    _python("lines-accelerate", "lines_accelerate.py", restorable=True),
    _python("lines-deepspeed", "lines_deepspeed.py", "deepspeed", restorable=True),
    Program(name="lines-torchrun", line=f"{_TORCHRUN} lines_ddp.py", gpus=2, restorable=True),
    Program(
        name="lines-srun",
        line="srun python lines_ddp.py",
        gpus=2,
        flags=("--ntasks=2",),
        restorable=True,
    ),
    _python("trainer", "trainer.py", restorable=True),
    _python("trainer-accumulation", "trainer.py --accumulate", restorable=True),
    _python("trainer-workers", "trainer.py --workers", restorable=True),
    _python("clm", "clm.py", "datasets", "evaluate", restorable=True),
    _python("lightning", "fit.py", restorable=True),
    _python("lightning-validates", "fit.py --validate", restorable=True),
    _python("lightning-workers", "fit.py --workers", restorable=True),
    _python("pytorch-lightning", "fit.py --old-name", restorable=True),
)
"""Programs that must be attached to, counted, and come to the same result."""

_PATHS: Final = "import sys; sys.path[:0] = ['.', *{}]; import plain"
_SITE: Final = "$(python -c 'import site; print(site.getsitepackages())')"

UNATTACHED: Final = (
    Program(name="isolated", line=f'python -I -c "{_PATHS.format("[]")}"', reason="-I"),
    Program(name="without-site", line=f'python -S -c "{_PATHS.format(_SITE)}"', reason="-S"),
    Program(name="ignores-environment", line="python -E plain.py", reason="-E"),
    Program(
        name="own-pythonpath",
        line="export PYTHONPATH=/opt/mine\npython plain.py",
        reason="PYTHONPATH",
    ),
    Program(
        name="own-sitecustomize",
        line="export PYTHONPATH=$PWD/mine:$PYTHONPATH\npython plain.py",
        reason="sitecustomize",
    ),
    Program(
        name="hooks-off",
        line="export SLIPSTREAM_HOOKS=0\npython plain.py",
        reason="SLIPSTREAM_HOOKS",
    ),
    Program(name="without-torch", line="python without_torch.py", reason="torch"),
    Program(
        name="old-python",
        line="$PROGRAM_OLD_PYTHON old_python.py $(python -c 'import importlib.util as look; "
        'print(*look.find_spec("torch").submodule_search_locations)\')/lib/libtorch_cpu.so',
        needs_old_python=True,
        reason="3.9",
    ),
)
"""Programs that the hooks cannot attach to: their users must be told, and what to do."""
