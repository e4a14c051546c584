# SPDX-License-Identifier: Apache-2.0
"""What a move costs: a training with 500 MB of state goes from one node to another.

`make -s bench NAME=move`; `ARGS="--moves 100"` for the whole campaign. A real Slurm cluster whose
nodes have network namespaces of their own, in a RAM disk: what a node saves lies in one, and a disk
would be measured twice. Each training is moved once and goes on to its end,
which is compared with the same training undisturbed. The last line printed is one JSON object:

* `move_s`: from the request to the first mini-batch after the restore, the median of all moves.
* `allowed_s`: what the same takes at least, plus a second: `stock_requeue_other_node_s` (a sleeping
  job by Slurm's own means, from requeue to the start of its script elsewhere) + `import_torch_s` +
  `transfer_s` (as many bytes written and synced to the shared filesystem), all of the same run.
* `launch_s`: from the training's process to its first mini-batch when it is started for the first
  time, with the hooks: no move can have it for less.
* `pause_s`: between the last mini-batch before and the first one after.
* `parts_s`: where the time goes, medians.
* `bit_exact`: every training ended with the bits it would have had; `lost`: mini-batches, or whole
  trainings, that are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

STATE_MB: Final = 500
EPOCHS: Final = 20
PAUSE_MS: Final = 60
TIMES: Final = 3
PATIENCE_S: Final = 120.0
_TRAINING: Final = Path(__file__).with_name("moving_training.py")


def main() -> None:
    """Measure, telling what goes on; the figures come last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moves", type=int, default=5)
    parser.add_argument("--state-mb", type=int, default=STATE_MB)
    asked = parser.parse_args()
    shape = Shape(nodes=3, gpus_per_node=1, racks=1)
    with tempfile.TemporaryDirectory(prefix="bm-", dir="/dev/shm") as name:
        folder = Path(name)
        folder.chmod(0o755)
        expected = _alone(folder, asked.state_mb)
        import_s = statistics.median(_import_torch_s() for _ in range(TIMES))
        _tell(f"import torch: {import_s:.2f} s")
        with Sandbox.started(shape, name="move", home=folder, daemons=True, netns=True) as box:
            transfer_s = statistics.median(
                _transfer_s(box.layout.durable, asked.state_mb) for _ in range(TIMES)
            )
            stock_s = _stock_s(box, folder)
            _tell(f"transfer: {transfer_s:.2f} s, stock requeue elsewhere: {stock_s:.2f} s")
            moves = [
                _moved(box, folder / str(number), asked.state_mb, expected)
                for number in range(asked.moves)
            ]
    print(json.dumps(_figures(moves, stock_s, import_s, transfer_s)))


@dataclass(frozen=True)
class Line:
    """A mini-batch as the training noted it; "end" for what it holds at last."""

    what: str
    bits: str
    at_s: float
    pid: int


@dataclass(frozen=True)
class Moved:
    """How one move went."""

    move_s: float
    launch_s: float
    pause_s: float
    parts_s: dict[str, float]
    lost: int
    bit_exact: bool


def _figures(
    moves: list[Moved], stock_s: float, import_s: float, transfer_s: float
) -> dict[str, Any]:
    taken = [one.move_s for one in moves]
    return {
        "move_s": round(statistics.median(taken), 2),
        "move_worst_s": round(max(taken), 2),
        "allowed_s": round(stock_s + import_s + transfer_s + 1.0, 2),
        "stock_requeue_other_node_s": round(stock_s, 2),
        "import_torch_s": round(import_s, 2),
        "transfer_s": round(transfer_s, 2),
        "launch_s": round(statistics.median(one.launch_s for one in moves), 2),
        "pause_s": round(statistics.median(one.pause_s for one in moves), 2),
        "parts_s": {
            part: round(statistics.median(one.parts_s[part] for one in moves), 2)
            for part in moves[0].parts_s
        },
        "bit_exact": all(one.bit_exact for one in moves),
        "lost": sum(one.lost for one in moves),
        "moves": len(moves),
    }


def _moved(box: Sandbox, folder: Path, state_mb: int, expected: dict[str, str]) -> Moved:
    """One training from its start to its end, with a move in between."""
    folder.mkdir()
    script = f"export LOSSES={folder}/losses; exec {shlex.join(_words(state_mb, PAUSE_MS))}"
    job = box.run(
        *("sbatch", "--parsable", f"--output={folder}/out", "--slip-class=shared"),
        *("--gres=gpu:1", f"--wrap={script}"),
    ).stdout.strip()
    _until(lambda: (_why(box, job).get("training") or {}).get("restorable"), f"{job} restorable")
    launch_s = float(_why(box, job)["training"]["launch_s"])
    asked_at_s = time.time()
    told = _asked(box, "POST /v1/move", json.dumps({"job": job}))
    _until(lambda: len(_pids(folder)) > 1, f"job {job} trains on {told['nodes']}")
    _until(lambda: _lines(folder)[-1].what == "end", f"the end of job {job}")
    lines = _lines(folder)
    first, last = lines[0].pid, lines[-1].pid
    before = [one for one in lines if one.pid == first]
    after = [one for one in lines if one.pid == last]
    story = {line["text"]: line["at_s"] for line in _why(box, job)["story"]}
    found = {one.what: one.bits for one in lines}
    wrong = sum(found.get(what) != bits for what, bits in expected.items())
    moved = Moved(
        move_s=after[0].at_s - asked_at_s,
        launch_s=launch_s,
        pause_s=after[0].at_s - before[-1].at_s,
        parts_s=_parts(story, asked_at_s, before, after),
        lost=wrong,
        bit_exact=not wrong and after[-1].bits == expected["end"],
    )
    _tell(f"job {job}: {moved}")
    # Copies are kept for a day, and lie in this machine's memory here: not a hundred of them.
    for copy in box.layout.durable.glob(f"*/{job}-*"):
        shutil.rmtree(copy)
    return moved


def _parts(
    story: dict[str, float], asked_at_s: float, before: list[Line], after: list[Line]
) -> dict[str, float]:
    saved_at_s = next(at_s for text, at_s in story.items() if text.startswith("saved"))
    # The first run's line has the same words up to the node: the last one counts.
    runs_at_s = [at_s for text, at_s in story.items() if text.startswith("running")][-1]
    return {
        "save_and_carry": saved_at_s - asked_at_s,
        "requeue_to_last_minibatch": before[-1].at_s - saved_at_s,
        "last_minibatch_to_running": runs_at_s - before[-1].at_s,
        "running_to_first_minibatch": after[0].at_s - runs_at_s,
    }


def _stock_s(box: Sandbox, folder: Path) -> float:
    """A sleeping job without us: requeue, and the shortcut by StartTime."""
    out = folder / "stock"
    script = f"date +%s.%N >> {out}; exec sleep 1000"
    words = ("sbatch", "--parsable", "--output=/dev/null", "--nodelist=n1", f"--wrap={script}")
    job = box.run(*words).stdout.strip()
    taken = []
    for number in range(TIMES):
        _until(lambda: out.exists() and len(out.read_text().split()) > number, "the sleeping job")  # noqa: B023 (called at once)
        began_s = time.time()
        box.run("scontrol", "requeue", job)
        _until(lambda: _state(box, job) == "PENDING", "it is in the queue", every_s=0.02)
        node = f"n{(number + 1) % 3 + 1}"
        box.run("scontrol", "update", f"JobId={job}", "StartTime=now", f"ReqNodeList={node}")
        _until(lambda: len(out.read_text().split()) > number + 1, "it runs again")  # noqa: B023 (called at once)
        taken.append(float(out.read_text().split()[-1]) - began_s)
    box.run("scancel", job)
    return statistics.median(taken)


def _state(box: Sandbox, job: str) -> str:
    return box.run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip()


def _alone(folder: Path, state_mb: int) -> dict[str, str]:
    """What the training comes to with nothing of ours around it."""
    (folder / "alone").mkdir()
    variables = {"LOSSES": str(folder / "alone" / "losses"), "SLIPSTREAM_HOOKS": "0"}
    subprocess.run(_words(state_mb, 0), env={**os.environ, **variables}, check=True)
    return {one.what: one.bits for one in _lines(folder / "alone")}


def _words(state_mb: int, pause_ms: float) -> list[str]:
    words = [sys.executable, str(_TRAINING), f"--state-mb={state_mb}", f"--epochs={EPOCHS}"]
    return [*words, f"--pause-ms={pause_ms}"]


def _import_torch_s() -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began_s


def _transfer_s(folder: Path, state_mb: int) -> float:
    """So many bytes to the shared filesystem, synced."""
    path = folder / "transfer"
    piece = os.urandom(1_000_000)
    began_s = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(state_mb):
            file.write(piece)
        os.fsync(file.fileno())
    taken_s = time.monotonic() - began_s
    path.unlink()
    return taken_s


def _lines(folder: Path) -> list[Line]:
    path = folder / "losses"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [Line(row[0], row[1], float(row[2]), int(row[3])) for row in rows]


def _pids(folder: Path) -> set[int]:
    return {one.pid for one in _lines(folder)}


def _why(box: Sandbox, job: str) -> dict[str, Any]:
    told: dict[str, Any] = _asked(box, f"GET /v1/why/{job}").get("why", {})
    return told


def _asked(box: Sandbox, what: str, body: str = "") -> dict[str, Any]:
    """By the scheduler's socket: the command costs a core half a second before it asks."""
    head = f"{what} HTTP/1.0\r\nHost: scheduler\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(box.layout.run / "api.sock"))
        connection.sendall((head + body).encode())
        _head, _, answer = connection.makefile().read().partition("\n\n")
    told: dict[str, Any] = json.loads(answer)
    return told


def _until(holds: Callable[[], object], what: str, every_s: float = 0.1) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(what)
        time.sleep(every_s)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
