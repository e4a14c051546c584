# SPDX-License-Identifier: Apache-2.0
"""The history: bounded, replaceable, exportable; ruined files and killed writers."""

from __future__ import annotations

import io
import logging
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main
from slipstream.estimator.features import Features
from slipstream.estimator.history import _NEW_IN, ASKED_FOR_S, FILE, History, HistoryError
from slipstream.estimator.runs import COLUMNS, JSON_COLUMNS, Run, RunError, from_row, run_key
from slipstream.estimator.runs_csv import read_csv, write_csv
from slipstream.estimator.runs_parquet import read_parquet, write_parquet
from slipstream.estimator.values import category_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

NOW_S = 1_700_000_000
FIXTURES = Path(__file__).parents[1] / "fixtures" / "slurm"
WHOLE = Run(
    key="12_3@1700000000",
    ended_s=1_700_000_100.5,
    family='1000/t "quoted", é.py',
    numbers={"arg.lr": 0.1, "ask.gpus": 2.0},
    categories={"arg.model": 579_184_930},
    alone=False,
    gpus=2,
    gpu_memory_mib=2150.25,
    gpu_use_pct=55.5,
    gpu_use_spread_pct=4.0,
    network_mbps=800.0,
    cpus=4,
    host_memory_mib=900,
    run_s=100.0,
    launch_s=5.0,
    train_s=90.0,
    save_s=5.0,
    minibatch_ms=12.5,
    minibatches=7200,
    nodes=2,
    ranks=2,
    cpu_s=190.25,
    sent_mib=9000.5,
    device_s=50.0,
)


def run(number: int, family: str = "1/t.py") -> Run:
    """One that ended in that second."""
    return Run(key=run_key(str(number), 0), ended_s=float(number), family=family)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A new one, of ten runs and a thousand seconds at most."""
    with closing(History(tmp_path / FILE, most_runs=10, longest_s=1000.0)) as one:
        yield one


def test_what_is_added_is_there_after_a_restart(tmp_path: Path) -> None:
    """All that was measured, to the last digit; and what was not measured stays unknown."""
    with closing(History(tmp_path / FILE)) as one:
        assert one.add([WHOLE, run(NOW_S)]) == 2
    with closing(History(tmp_path / FILE)) as one:
        assert list(one.runs()) == [WHOLE, run(NOW_S)]
        assert one.set_aside is None


def test_a_run_told_twice_is_one_run(history: History) -> None:
    """The later word counts: measurements come after Slurm's record, or the other way round."""
    history.add([run(1), run(1, "1/other.py")])
    history.add([run(1, "1/third.py")])
    assert list(history.runs()) == [run(1, "1/third.py")]


def test_families_are_found_newest_first(history: History) -> None:
    """Others are not looked at."""
    history.add([run(1), run(3), run(2, "2/t.py"), run(4)])
    assert [one.ended_s for one in history.runs("1/t.py")] == [4, 3, 1]
    assert [one.ended_s for one in history.runs()] == [4, 3, 2, 1]
    assert list(history.runs("nobody's")) == []


def test_the_oldest_are_forgotten(history: History) -> None:
    """Beyond a number, and beyond an age."""
    history.add(run(number) for number in range(25))
    assert [one.ended_s for one in history.runs()] == list(range(24, 14, -1))
    history.add([run(1018)])
    assert [one.ended_s for one in history.runs()] == [1018, *range(24, 17, -1)]


def test_all_or_none_are_added(history: History) -> None:
    """A row that cannot be written takes the others back, and the next ones work."""

    def failing() -> Iterator[Run]:
        yield run(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        history.add(failing())
    assert len(history) == 0
    history.add([run(2)])
    assert len(history) == 1


def ruin_all(path: Path) -> None:
    """Not a database any more."""
    path.write_bytes(b"ruined " * 10_000)


def ruin_middle(path: Path) -> None:
    """A page of zeros where runs were."""
    data = bytearray(path.read_bytes())
    data[4096 : len(data) - 4096] = bytes(len(data) - 8192)
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Half of it, as a full disk leaves it."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("ruin", [ruin_all, ruin_middle, cut])
def test_a_ruined_file_is_set_aside_loudly(
    ruin: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the operator; the next runs fill a new file."""
    path = tmp_path / FILE
    with closing(History(path)) as one:
        one.add(run(number) for number in range(2000))
    assert callable(ruin)
    ruin(path)
    with caplog.at_level(logging.CRITICAL), closing(History(path)) as one:
        assert len(one) == 0
        one.add([run(1)])
        assert one.set_aside
        assert one.set_aside.exists()
    (record,) = caplog.records
    assert "is ruined" in record.message
    with closing(History(path)) as one:
        assert list(one.runs()) == [run(1)]


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    """An older daemon must not throw away what a newer one gathered."""
    path = tmp_path / FILE
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=3")
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="version 3, this is 2"):
        History(path)
    assert path.read_bytes() == before


def test_a_file_of_version_1_gets_the_columns_it_lacks(tmp_path: Path) -> None:
    """What was gathered stays, and new runs fit beside it."""
    path = tmp_path / FILE
    old = [name for name in COLUMNS if name not in _NEW_IN[2]]
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE run ({', '.join(old)}, PRIMARY KEY (key)) WITHOUT ROWID")
        values = {"key": f"{NOW_S}@0", "ended_s": NOW_S, "family": "1/t.py", "alone": 1, "gpus": 1}
        row = [values.get(name, "{}" if name in JSON_COLUMNS else None) for name in old]
        db.execute(f"INSERT INTO run VALUES ({', '.join('?' * len(old))})", row)  # noqa: S608 (only question marks)
        db.execute("PRAGMA user_version=1")
        db.commit()
    for _ in range(2):
        with closing(History(path)) as one:
            one.add([WHOLE])
            assert list(one.runs()) == [WHOLE, run(NOW_S)]


def test_what_was_asked_is_kept_until_the_job_has_ended(tmp_path: Path) -> None:
    """By token, over a restart, as numbers and categories; and not for ever."""
    features = Features(family="1/t.py", numbers={"arg.lr": 0.1}, words={"arg.model": "cnn"})
    with closing(History(tmp_path / FILE)) as one:
        one.remember([("00ff", NOW_S, features)])
    with closing(History(tmp_path / FILE)) as one:
        asked = one.recalled("00ff")
        assert asked == ("1/t.py", {"arg.lr": 0.1}, {"arg.model": category_of("cnn")})
        assert one.recalled("0000") is None
        one.remember([("0000", NOW_S + ASKED_FOR_S + 1, features)])
        assert one.recalled("00ff") is None


def test_no_more_submissions_are_kept_than_runs(history: History) -> None:
    """The oldest go first."""
    for number in range(15):
        history.remember([(f"{number:016x}", float(number), Features(family="1/t.py"))])
    kept = [number for number in range(15) if history.recalled(f"{number:016x}")]
    assert kept == list(range(5, 15))


def test_a_folder_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    """Nothing is ruined by it, so nothing is set aside."""
    with pytest.raises(sqlite3.OperationalError):
        History(tmp_path / "nowhere" / FILE)


WRITER = """
import sys
from pathlib import Path
from slipstream.estimator.history import History
from slipstream.estimator.runs import Run

history = History(Path(sys.argv[1]))
for number in range(1_000_000):
    history.add([Run(key=f"{number}@0", ended_s=float(number), family="1/t.py")])
    print(number, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_had_finished(tmp_path: Path) -> None:
    """`kill -9` while it writes, again and again."""
    path = tmp_path / FILE
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout
            for line in writer.stdout:
                if int(line) >= 50:
                    break
            writer.send_signal(signal.SIGKILL)
            done = [int(line) for line in writer.stdout.read().splitlines()]
        with closing(History(path)) as one:
            kept = {int(found.ended_s) for found in one.runs()}
            assert one.set_aside is None
        assert kept >= {*range(51), *done}


def test_csv_and_back_is_the_same() -> None:
    """With quotes, commas and what nobody measured."""
    out = io.StringIO()
    assert write_csv([WHOLE, run(1)], out) == 2
    assert list(read_csv(io.StringIO(out.getvalue()))) == [WHOLE, run(1)]


def test_parquet_and_back_is_the_same(tmp_path: Path) -> None:
    """With types of its own, and what nobody measured."""
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    file = tmp_path / "runs.parquet"
    assert write_parquet([WHOLE, run(1)], file) == 2
    assert list(read_parquet(file)) == [WHOLE, run(1)]
    assert list(tmp_path.iterdir()) == [file]
    file.write_bytes(b"PAR1 or not")
    with pytest.raises(RunError, match=r"runs\.parquet is no Parquet file"):
        list(read_parquet(file))


def test_without_pyarrow_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, both ways; CSV works all the same."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "runs.parquet"
    file.touch()
    for word in ("export", "import"):
        done = command(tmp_path, word, str(file))
        assert done.exit_code == 1
        assert "pip install 'slurm-slipstream[parquet]'" in done.output
    assert command(tmp_path, "export").exit_code == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("key,ended_s,family\na@1,soon,x\n", "line 2: not understood .*ended_s"),
        ("key,ended_s,family,colour\na@1,1,x,red\n", r"columns \['colour'\] are not known"),
        ("key,ended_s,family\na@1,1,x,more\n", "columns \\['more'\\] are not known"),
        ("key,ended_s\na@1,1\n", "family"),
        ("key,ended_s,family,numbers\na@1,1,x,{\n", "line 2: not understood"),
        ("key,ended_s,family,numbers\na@1,1,x,[1]\n", "line 2: not understood"),
        ('key,ended_s,family\n"a@1,1,x', "line .: unexpected end of data"),
    ],
)
def test_a_bad_line_says_which(text: str, sentence: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(RunError, match=sentence):
        list(read_csv(io.StringIO(text)))


def test_a_row_without_a_value_has_the_default() -> None:
    """Files of earlier versions lack columns."""
    assert from_row({"key": "1@0", "ended_s": "1", "family": "1/t.py"}) == run(1)


def command(folder: Path, *words: str, text: str | None = None) -> Result:
    """`slipstream history …` in a state dir of its own."""
    return CliRunner().invoke(
        main, ["history", *words], input=text, env={"SLIPSTREAM_STATE_DIR": str(folder)}
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_history_travels_by_file(tmp_path: Path, suffix: str) -> None:
    """Export there, import here; twice is once."""
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    with closing(History(tmp_path / FILE)) as one:
        one.add([WHOLE, run(NOW_S)])
    file = tmp_path / f"runs.{suffix}"
    assert command(tmp_path, "export", str(file)).exit_code == 0
    for _ in range(2):
        done = command(tmp_path / "other", "import", str(file))
        assert (done.exit_code, done.output) == (0, "2 runs imported, 2 are kept\n")
    again = command(tmp_path / "other", "export")
    assert again.stdout == command(tmp_path, "export").stdout
    assert again.stderr == "2 runs\n"


def test_what_sacct_prints_becomes_runs(tmp_path: Path) -> None:
    """Completed jobs with GPUs: a recorded answer of real Slurm."""
    text = (FIXTURES / "22.05.8" / "sacct.txt").read_text()
    done = command(tmp_path, "import", "--sacct", text=text)
    assert done.output == "4 runs imported, 4 are kept\n", done.output
    with closing(History(tmp_path / FILE)) as one:
        found = {found.key.partition("@")[0]: found for found in one.runs()}
    assert set(found) == {"1", "2_0", "2_1", "5"}
    assert found["2_0"].family == "0/odd|name"
    first = found["1"]
    assert (first.gpus, first.run_s, first.cpus, first.alone) == (2, 2.0, 1, True)
    assert first.numbers["ask.time_limit_s"] == 300
    assert (first.host_memory_mib, first.gpu_memory_mib) == (None, None)


def test_what_cannot_be_imported_is_one_sentence(tmp_path: Path) -> None:
    """With what to ask sacct for."""
    done = command(tmp_path, "import", "--sacct", text="JobID|State\n1|COMPLETED\n")
    assert done.exit_code == 1
    assert "--format=JobID,UID," in done.output
    assert command(tmp_path, "import", text="colour\nred\n").exit_code == 1
    assert not (tmp_path / FILE).exists()


def test_a_ruined_file_is_told_at_the_terminal(tmp_path: Path) -> None:
    """And the command works all the same."""
    ruin_all(tmp_path / FILE)
    done = command(tmp_path, "export")
    assert done.exit_code == 0
    assert "was ruined" in done.stderr
