# SPDX-License-Identifier: Apache-2.0
"""Re-bind: a training goes on to the bit in the same process, on another GPU; or just goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from occupancy_rig import MIB, simulated_node
from slipstream.torch_hooks.occupancy_context import open_node
from slipstream.torch_hooks.testing import Trial, check_rebind
from slipstream.wire.control_block import Capability, Directive, Phase, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [pytest.mark.unit, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[1] / "rebind_training.py"


@contextlib.contextmanager
def training(
    folder: Path, *words: str, argv: Sequence[str] = (), **variables: str
) -> Iterator[Trial]:
    """The training, on processors that it may choose from."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"NOTES": str(folder / "notes"), **variables}
    command = argv or [sys.executable, str(SCRIPT)]
    with Trial([*command, *words], folder, environment=environment) as trial:
        yield trial


def printed(trial: Trial) -> list[str]:
    """What it printed, without complaints of others."""
    lines = trial.output.read_text().splitlines()
    return [line for line in lines if line.split()[0].isdigit() or line.startswith("end ")]


def notes(trial: Trial) -> list[str]:
    """What each image found when it began."""
    return trial.log.with_name("notes").read_text().splitlines()


def wait_until_able(trial: Trial) -> None:
    """Until it says that it can be re-bound."""
    trial.wait_for(lambda: bool(trial.progress.capabilities & Capability.REBINDABLE))


def rebound(trial: Trial, *gpus: str) -> None:
    """Re-bind it, and see its next image."""
    wait_until_able(trial)
    before = trial.progress.rebinds
    trial.ask(Request.REBIND, gpus=gpus)
    trial.wait_for(lambda: trial.progress.rebinds == before + 1)
    assert trial.progress.pid == trial.pid


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the training prints when it is left alone."""
    with training(tmp_path_factory.mktemp("undisturbed"), "--nap-ms=0") as trial:
        assert trial.finish() == 0, trial.told()
    lines = printed(trial)
    assert len(lines) == 301
    return lines


def children_of(pid: int) -> list[int]:
    """Processes that it has started and that live."""
    done = subprocess.run(
        ["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return [int(number) for number, state in rows if not state.startswith("Z")]


def test_memory_goes_from_one_gpu_to_the_other_and_losses_stay(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    """There and back, and not to one that is not there; all in one process, each printed once."""
    with simulated_node(gpu_count=2) as state:
        gpus = open_node(str(state)).gpus
        first, second = (gpu.uuid.decode() for gpu in gpus)

        def held() -> list[int]:
            return [sum(one.memory_bytes for one in gpu.processes if one.pid) for gpu in gpus]

        with training(tmp_path, SLIPSTREAM_GPU_STATE=str(state), CUDA_VISIBLE_DEVICES="0") as trial:
            wait_until_able(trial)
            assert held() == [100 * MIB, 0]
            trial.ask(Request.REBIND, gpus=["GPU-nowhere"])
            trial.wait_for(lambda: trial.progress.problems == 1)
            rebound(trial, second)
            wait_until_able(trial)
            assert held()[1] == 100 * MIB
            rebound(trial, first)
            wait_until_able(trial)
            assert held()[0] == 100 * MIB
            assert trial.finish() == 0, trial.told()
    assert printed(trial) == undisturbed
    assert len(notes(trial)) == 3
    assert "not re-bound: there is no GPU GPU-nowhere here that works" in trial.told()


def test_what_a_program_changes_is_as_it_was_when_it_begins_anew(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    """Folder, environment, processors, signals, timers and descriptors; pid and session stay."""
    with training(tmp_path, "--how=traces") as trial:
        rebound(trial, "GPU-b")
        assert trial.finish() == 0, trial.told()
    first, second = notes(trial)
    assert first == second
    assert printed(trial) == undisturbed


def test_workers_of_a_loader_are_not_left_behind(tmp_path: Path) -> None:
    """They look whether their parent lives, and it does."""
    with training(tmp_path, "--workers=2", "--epochs=1000") as trial:
        wait_until_able(trial)
        trial.wait_for(lambda: len(children_of(trial.pid)) >= 2)
        before = set(children_of(trial.pid))
        rebound(trial, "GPU-b")
        wait_until_able(trial)
        assert not before & set(children_of(trial.pid))
        trial.wait_for(lambda: len(children_of(trial.pid)) >= 2)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("exec {python} -m rebind_training", id="module"),
        pytest.param("exec {python} rebind_training.py", id="relative"),
        pytest.param(
            "exec {python} -uc 'import rebind_training; rebind_training.main()'", id="command"
        ),
    ],
)
def test_however_it_was_started_it_is_started_again(
    tmp_path: Path, start: str, undisturbed: list[str]
) -> None:
    """Also from a folder of its own; arguments come after."""
    command = f'cd {SCRIPT.parent} && {start.format(python=sys.executable)} "$@"'
    with training(tmp_path, "--how=traces", argv=["sh", "-c", command, "sh"]) as trial:
        rebound(trial, "GPU-b")
        assert trial.finish() == 0, trial.told()
    first, second = notes(trial)
    assert first == second
    assert printed(trial) == undisturbed


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param("chooses", "the program chooses its GPUs itself", id="chooses"),
        pytest.param("rank", "ranks that train together", id="rank"),
        pytest.param("stdin", "its program is in no file", id="stdin"),
    ],
)
def test_who_cannot_be_rebound_says_so_and_is_not(tmp_path: Path, how: str, why: str) -> None:
    """It is restorable all the same; asked, it says no and goes on."""
    argv = ["sh", "-c", f'exec {sys.executable} - "$@" < {SCRIPT}', "sh"] if how == "stdin" else ()
    with training(tmp_path, f"--how={how}", argv=argv) as trial:
        trial.wait_for(lambda: bool(trial.progress.capabilities & Capability.RESTORABLE))
        trial.wait_for(lambda: "not re-bindable" in trial.told())
        assert not trial.progress.capabilities & Capability.REBINDABLE
        trial.ask(Request.REBIND, gpus=["GPU-b"])
        assert trial.finish() == 0, trial.told()
    assert f"not re-bindable: {why}" in trial.told()
    assert f"not re-bound: {why}" in trial.told()
    assert (trial.progress.rebinds, len(notes(trial))) == (0, 1)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param("child", "it has a child that would be left behind: b'sleep 600'", id="child"),
        pytest.param("edits", "is not the file any more that it was started from", id="edits"),
    ],
)
def test_who_cannot_be_rebound_at_the_moment_goes_on_where_it_is(
    tmp_path: Path, how: str, why: str, undisturbed: list[str]
) -> None:
    """With one line in the log, and nothing else changed."""
    script = shutil.copy(SCRIPT, tmp_path)
    with training(tmp_path, f"--how={how}", argv=[sys.executable, str(script)]) as trial:
        trial.wait_for(lambda: bool(trial.progress.capabilities & Capability.RESTORABLE))
        trial.ask(Request.REBIND, gpus=["GPU-b"])
        assert trial.finish() == 0, trial.told()
    assert trial.told().count("not re-bound: ") == 1
    assert why in trial.told()
    assert printed(trial) == undisturbed


def test_an_exec_that_fails_leaves_the_training_as_it_was(tmp_path: Path) -> None:
    """Its interpreter may not be run any more: it is saved, and trains on, with its workers."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    shutil.copy(Path(sys.executable).resolve(), python)
    home = Path(sysconfig.get_config_var("BINDIR"))
    (tmp_path / "pyvenv.cfg").write_text(f"home = {home}\n")
    inject = Path(check_rebind.__code__.co_filename).with_name("inject")
    path = os.pathsep.join([str(inject), *filter(None, sys.path)])
    argv = [str(python), str(SCRIPT), "--workers=1", "--how=traces", "--epochs=9999", "--flush"]
    with training(tmp_path, argv=argv, PYTHONPATH=path) as trial:
        wait_until_able(trial)
        python.chmod(0o600)
        trial.ask(Request.REBIND, gpus=["GPU-b"])
        trial.wait_for(lambda: trial.progress.problems == 1)
        assert trial.progress.phase == Phase.TRAINING
        python.chmod(0o700)
        enough = trial.progress.minibatches + 100
        trial.ask(Request.REBIND, gpus=["GPU-c"])
        trial.wait_for(lambda: trial.progress.rebinds == 1)
        trial.wait_for(lambda: trial.progress.minibatches >= enough)
    assert trial.told().count("not re-bound: [Errno 13] Permission denied") == 1
    numbers = [int(line.split()[0]) for line in printed(trial)]
    assert numbers == list(range(1, len(numbers) + 1)), "each once, and none left out"
    assert len(numbers) >= enough - 1


def test_a_page_that_names_other_gpus_is_followed_from_the_beginning(tmp_path: Path) -> None:
    """Nothing is on a device yet: no exec is needed, and REBIND asks nothing of it."""
    ask = Directive(request=Request.REBIND, gpu_uuids=("GPU-b", "GPU-a"))
    environment = {"NOTES": str(tmp_path / "notes"), "CUDA_VISIBLE_DEVICES": "0"}
    tell = f"import os, torch, sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
    tell += "print(os.environ['CUDA_VISIBLE_DEVICES'])\nimport rebind_training as it; it.main()"
    argv = [sys.executable, "-c", tell]
    with Trial(argv, tmp_path, ask=ask, environment=environment) as trial:
        assert trial.finish() == 0, trial.told()
    assert trial.output.read_text().startswith("GPU-b,GPU-a\n")
    assert (trial.progress.rebinds, trial.progress.problems, len(notes(trial))) == (0, 0, 1)


def test_hooks_switched_off_are_not_rebound(tmp_path: Path) -> None:
    """They see nothing of it."""
    with training(tmp_path, "--epochs=3", SLIPSTREAM_HOOKS="0") as trial:
        trial.ask(Request.REBIND, gpus=["GPU-b"])
        assert trial.finish() == 0, trial.told()
    assert (len(notes(trial)), trial.progress.pid) == (1, 0)


def test_a_script_can_be_tried_without_a_cluster(tmp_path: Path) -> None:
    """The command says that it goes on to the bit, and ends with 0."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "slipstream.torch_hooks.testing", "--at=4", "--until=30"),
            *("--rebind=GPU-b", "--", sys.executable, str(SCRIPT), "--epochs=9999"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NOTES": str(tmp_path / "notes")},
    )
    assert done.stdout.startswith("goes on to the bit: the same state after mini-batch "), done
    assert (done.returncode, done.stderr) == (0, "")
