# SPDX-License-Identifier: Apache-2.0
"""What is read from scripts as people write them, and what is never read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from core_world import request
from slipstream.core.classes import Per, Role
from slipstream.core.sights import Gpus, Request
from slipstream.estimator import Clues, Features, read
from slipstream.estimator.shell import main_command
from slipstream.estimator.values import category_of, name_of, number_of

pytestmark = pytest.mark.unit


def features(script: str, *arguments: str, **more: object) -> Features:
    """Of a script of somebody who asks for one GPU."""
    return read(Clues(request=request(), script=script, arguments=arguments, **more))  # type: ignore[arg-type]


def of_program(found: Features) -> dict[str, object]:
    """What its own arguments are, by name."""
    both: dict[str, object] = {**found.numbers, **found.words}
    return {name[4:]: value for name, value in both.items() if name.startswith("arg.")}


@pytest.mark.parametrize(
    ("line", "program", "launcher", "arguments"),
    [
        (
            "python train.py --lr=0.1 --batch-size 64",
            "train.py",
            "python",
            {"lr": 0.1, "batch_size": 64.0},
        ),
        (
            "torchrun --nproc_per_node=4 train.py --amp --model resnet50",
            "train.py",
            "torchrun",
            {"amp": 1.0, "model": "resnet50"},
        ),
        (
            "srun --ntasks=2 python -u /home/u/train.py --epochs 3 > log.txt 2>&1",
            "train.py",
            "srun",
            {"epochs": 3.0},
        ),
        (
            "accelerate launch --num_processes 2 run.py --width -1.5e2",
            "run.py",
            "accelerate",
            {"width": -150.0},
        ),
        ("python3.11 -m lab.train --depth 18", "lab.train", "python", {"depth": 18.0}),
        ("python -m torch.distributed.run --nnodes 2 t.py 7", "t.py", "torchrun", {"0": 7.0}),
        ("deepspeed --num_gpus 2 t.py model.depth=18", "t.py", "deepspeed", {"model.depth": 18.0}),
        ("python -c 'import x; x.train(lr=3)'", "python -c", "python", {}),
        (
            "OMP_NUM_THREADS=8 python t.py --name 'two words'",
            "t.py",
            "python",
            {"name": "two words"},
        ),
        ("exec ${PYTHON:-python3} $folder/t.py --x 1 # --y 2", "t.py", "python", {"x": 1.0}),
        ("cd src && python t.py --x 1; echo done", "t.py", "python", {"x": 1.0}),
        ("if true; then python t.py --x 1; fi", "t.py", "python", {"x": 1.0}),
        ("singularity exec --nv i.sif python t.py --x 1", "t.py", "python", {"x": 1.0}),
        ("./simulate --cells 10", "simulate", "", {"cells": 10.0}),
    ],
)
def test_a_command_is_taken_apart(
    line: str, program: str, launcher: str, arguments: dict[str, object]
) -> None:
    """Launchers, the program, its options: numbers as numbers, words as words."""
    found = features(f"#!/bin/bash\n#SBATCH --time=5\nmodule load cuda\n\n{line}\n")
    assert found.words["program"] == program
    assert found.words.get("launcher", "") == launcher
    assert of_program(found) == arguments


def test_options_of_the_launcher_are_kept_apart() -> None:
    """A program may well have an option of the same name."""
    found = features("torchrun --nproc-per-node=4 --nnodes 2 train.py --nnodes 9")
    assert found.numbers["launch.nproc_per_node"] == 4
    assert (found.numbers["launch.nnodes"], found.numbers["arg.nnodes"]) == (2, 9)


def test_variables_of_the_script_are_filled_in() -> None:
    """Also defaults; what only the running shell knows stays as it is written."""
    found = features(
        "LR=0.1\nexport WIDTH=64\n"
        'python t.py --lr $LR --width "${WIDTH}" --deep ${D:-18} --seed $SLURM_ARRAY_TASK_ID'
    )
    assert of_program(found) == {
        "lr": 0.1,
        "width": 64.0,
        "deep": 18.0,
        "seed": "$SLURM_ARRAY_TASK_ID",
    }
    assert found.numbers["env.width"] == 64
    assert "env.lr" not in found.numbers  # no variable of the program's environment


def test_arguments_of_the_script_stand_where_it_passes_them_on() -> None:
    """`sbatch train.sh --lr 0.1`: all of them, or by number."""
    assert of_program(features('python t.py "$@"', "--lr", "0.1")) == {"lr": 0.1}
    assert of_program(features("python t.py --lr $1 --b ${2}", "0.1", "8")) == {"lr": 0.1, "b": 8.0}
    assert of_program(features("python t.py --lr $3", "0.1")) == {"lr": "$3"}


def test_without_a_script_the_command_itself_is_read() -> None:
    """As srun sends it."""
    found = read(Clues(request=request(), arguments=("python", "t.py", "--lr", "0.1")))
    assert found.words["program"] == "t.py"
    assert of_program(found) == {"lr": 0.1}


def test_of_several_commands_the_one_with_most_to_say_counts() -> None:
    """Preparations are short, installing is none, and the later one is the better guess."""
    script = (
        "python -m pip install --upgrade torch torchvision numpy scipy\n"
        "python prepare.py\n"
        "python train.py --lr 0.1 \\\n  --depth 3\n"
        "python eval.py --lr 0.1\n"
    )
    assert main_command(script).words[1] == "train.py"
    assert main_command("python a.py --x\npython b.py --y").words[1] == "b.py"


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "hf-token", "apiToken", "WANDB_API_KEY", "--key", "password", "db_passwd"),
        *("AWS_SECRET_ACCESS_KEY", "client.secret", "credentials", "auth", "GITHUB_TOKEN_2", "pwd"),
        *("sshKeys", "passphrase", "session-cookie", "DSN"),
    ],
)
def test_values_of_secrets_are_dropped(name: str) -> None:
    """On the command line, in the environment, in hints: no trace, not even of the name."""
    bare = name.strip("-").replace("-", "_").replace(".", "_")
    found = features(
        f"export {bare}=hunter2\n{bare}=hunter2 python t.py --{name.strip('-')}=hunter2 "
        f"--{name.strip('-')} hunter2 --pass-on ${bare} --or ${{{bare}:-hunter2}}",
        hints={name.lower(): "hunter2"},
    )
    assert "hunter2" not in repr(found)
    assert name_of(name) == ""


@pytest.mark.parametrize("name", ["num_tokens", "tokenizer", "max-tokens", "keypoints", "author"])
def test_what_only_sounds_like_a_secret_is_kept(name: str) -> None:
    """These matter to language models; a dropped one would make a worse estimate."""
    assert name_of(name)


@pytest.mark.parametrize(
    "value",
    [
        "postgres://me:hunter2@host/x",
        "HF_TOKEN=hunter2",
        "ALL,HF_TOKEN=hunter2",
        '\'{"api_key": "hunter2"}\'',
        "'Authorization-Key: hunter2'",
    ],
)
def test_a_value_with_a_secret_in_it_is_dropped(value: str) -> None:
    """Whatever the option is called; an address or a setting without one is kept."""
    found = features(f"python t.py --x {value} --site https://host/x --set lr=1,b=2")
    assert of_program(found) == {"site": "https://host/x", "set": "lr=1,b=2"}


def test_what_was_asked_is_among_the_features() -> None:
    """GPUs in all, nodes, tasks, roles, who, where."""
    asked = Request(
        token="",
        job_class=request().job_class,
        role=Role.OWNER,
        gpus=Gpus(Per.NODE, 4),
        nodes_min=2,
        tasks=8,
        cpus_per_task=3,
        memory_mib_per_node=1000,
        partition="batch",
        uid=1000,
        name="train-17",
    )
    found = read(
        Clues(
            request=asked,
            roles={"ps": 1, "worker": 4},
            hints={"model": "bert", "batch": "64"},
            account="lab",
            time_limit_s=60.0,
        )
    )
    assert found.numbers == {
        "ask.gpus": 8,
        "ask.nodes": 2,
        "ask.tasks": 8,
        "ask.cpus_per_task": 3,
        "ask.memory_mib_per_node": 1000,
        "ask.time_limit_s": 60,
        "ask.role.ps": 1,
        "ask.role.worker": 4,
        "hint.batch": 64,
    }
    assert found.words == {
        "ask.class": "shared",
        "ask.role": "owner",
        "ask.user": "1000",
        "ask.account": "lab",
        "ask.partition": "batch",
        "hint.model": "bert",
        "program": "train-#",
    }


def test_a_family_is_a_program_of_a_user() -> None:
    """Whatever its options; without a program its name, whatever its numbers."""
    one, other = features("python a/t.py --x 1"), features("srun python b/t.py --x 2")
    assert one.family == other.family == "0/t.py"
    assert features("true").family == "0/true"
    assert read(Clues(request=request())).family == "0/"
    named = replace(request(), name="HF_TOKEN=hunter2")
    assert read(Clues(request=named)).family == "0/"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1", 1.0), ("-1", -1.0), ("+.5", 0.5), ("1e-4", 1e-4), ("True", 1.0), ("off", 0.0)),
        *(("nan", None), ("-inf", None), ("1e999", None), ("-", None), ("", None), ("1x", None)),
        *(("0x10", None), ("1,2", None), ("9" * 400, None)),
    ],
)
def test_numbers_are_finite(text: str, number: float | None) -> None:
    """Nothing that would poison a model."""
    assert number_of(text) == number


def test_a_category_is_the_same_everywhere() -> None:
    """In another process under another hash seed, and for ever."""
    assert category_of("resnet50") == 579_184_930
    program = "from slipstream.estimator.values import category_of; print(category_of('resnet50'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == category_of("resnet50")
    found = features("python t.py --model resnet50")
    assert found.categories["arg.model"] == category_of("resnet50")
