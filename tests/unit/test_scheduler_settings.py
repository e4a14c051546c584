# SPDX-License-Identifier: Apache-2.0
"""Settings: who wins, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.cli.scheduler import MEANING
from slipstream.core.classes import Mode
from slipstream.scheduler.carriers import Carrier
from slipstream.scheduler.daemon import StartError, door_for
from slipstream.scheduler.engine import Counters
from slipstream.scheduler.settings import Settings, SettingsError, flag_of, load, names

pytestmark = pytest.mark.unit


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file that sets the mode and a time."""
    path = tmp_path / "scheduler.toml"
    path.write_text('mode = "advise"\nlease_s = 30\n')
    return path


def test_nothing_set_is_the_default(tmp_path: Path) -> None:
    """Observe, in the usual folders."""
    found = load({}, {}, file=_empty(tmp_path))
    assert found == Settings()
    assert found.mode is Mode.OBSERVE
    assert found.run_dir == Path("/run/slipstream")


def test_argument_beats_environment_beats_file(file: Path) -> None:
    """Each on top of the one below."""
    environment = {"SLIPSTREAM_SCHEDULER_MODE": "enforce"}
    assert load({}, {}, file).mode is Mode.ADVISE
    assert load({}, environment, file).mode is Mode.ENFORCE
    assert load({"mode": "observe"}, environment, file).mode is Mode.OBSERVE
    assert load({}, environment, file).lease_s == 30.0


def test_what_carries_advice_is_chosen_from_a_list(tmp_path: Path) -> None:
    """By itself, unless the operator says so."""
    assert Settings().carrier is Carrier.AUTO
    assert load({"carrier": "hold"}, {}, _empty(tmp_path)).carrier is Carrier.HOLD
    with pytest.raises(
        SettingsError, match=r"carrier is 'magic', known: \['auto', 'board', 'hold'\]"
    ):
        load({"carrier": "magic"}, {}, _empty(tmp_path))


def test_folders_have_one_name_for_all_parts(tmp_path: Path) -> None:
    """SLIPSTREAM_RUN_DIR is read by slurmctld's plugins as well."""
    environment = {
        "SLIPSTREAM_RUN_DIR": "/a",
        "SLIPSTREAM_STATE_DIR": "/b",
        "SLIPSTREAM_DISABLE_FILE": "/c",
        "SLIPSTREAM_CLASS": "shared",  # a flag's twin, not a setting of ours
    }
    found = load({}, environment, _empty(tmp_path))
    assert (found.run_dir, found.state_dir, found.disable_file) == (
        Path("/a"),
        Path("/b"),
        Path("/c"),
    )


@pytest.mark.parametrize("where", ["argument", "environment", "file"])
def test_an_unknown_setting_is_refused_with_the_known_ones(tmp_path: Path, where: str) -> None:
    """Wherever it is misspelt."""
    path = _empty(tmp_path)
    if where == "file":
        path.write_text("lease = 5\n")
    environment = {"SLIPSTREAM_SCHEDULER_LEASE": "5"} if where == "environment" else {}
    with pytest.raises(SettingsError, match=r"unknown .* \['lease'\]; known: ") as raised:
        load({"lease": "5"} if where == "argument" else {}, environment, path)
    assert "lease_s" in str(raised.value)


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("mode", "bogus", r"mode is 'bogus', known: \['observe', 'advise', 'enforce'\]"),
        ("lease_s", "long", "lease_s is 'long', which is no float"),
        ("lease_s", "-1", "lease_s is -1, it must be above 0"),
        ("api_port", "70000", "api_port is 70000, it must be 0 to 65535"),
        ("listen", "6823", "listen: .6823. is no HOST:PORT, say 10.0.0.1:6823"),
        ("log_level", "loud", "log_level is 'loud', known: "),
        ("poll_fastest_s", "60", "poll_.* do not go together"),
        ("events_between_checkpoints", "0", "at least 1"),
        ("guest_below_pct", "0", "guest_below_pct is 0, it must be above 0"),
        ("shares", "vision", "shares is 'vision', say: vision=2,speech=1"),
        ("shares", "vision=-1", r"shares of \['vision'\] must be above 0"),
    ],
)
def test_a_bad_value_is_refused_in_a_sentence(
    tmp_path: Path, setting: str, value: str, sentence: str
) -> None:
    """It says what it was and what it may be."""
    with pytest.raises(SettingsError, match=sentence):
        load({setting: value}, {}, _empty(tmp_path))


def test_shares_are_a_table_or_a_line(tmp_path: Path) -> None:
    """The order does not matter: the journal would take another one for a change."""
    path = tmp_path / "scheduler.toml"
    path.write_text("[shares]\nvision = 2\nspeech = 1.5\n")
    expected = (("speech", 1.5), ("vision", 2.0))
    assert load({}, {}, path).rules().shares == expected
    assert load({"shares": "vision=2, speech=1.5"}, {}, path).rules().shares == expected
    assert load({"shares": ""}, {}, path).rules().shares == ()


def test_a_named_file_must_be_there_and_be_toml(tmp_path: Path) -> None:
    """A file nobody named may be missing."""
    with pytest.raises(SettingsError, match="there is no"):
        load({}, {"SLIPSTREAM_SCHEDULER_FILE": str(tmp_path / "none.toml")})
    broken = tmp_path / "broken.toml"
    broken.write_text("mode = \n")
    with pytest.raises(SettingsError, match="could not be read"):
        load({}, {}, broken)


def test_every_setting_has_a_flag() -> None:
    """As commands spell it."""
    assert flag_of("poll_fastest_s") == "--poll-fastest-s"
    assert "run_dir" in names()


def _empty(folder: Path) -> Path:
    path = folder / "empty.toml"
    path.touch()
    return path


def test_without_what_other_hosts_need_it_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what is missing; who listens for nobody needs none of it."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere")
    assert door_for(Settings(), Counters(), frozenset({0})) is None
    listens = Settings(listen="127.0.0.1:6823", munge_socket=f"{tmp_path}/none")
    with pytest.raises(StartError, match="listen needs the cluster's name: set cluster"):
        door_for(listens, Counters(), frozenset({0}))
    with pytest.raises(StartError, match="listen needs munged: "):
        door_for(replace(listens, cluster="deep"), Counters(), frozenset({0}))


def test_every_setting_is_explained() -> None:
    """In the help of the command, with its default, and in the document."""
    assert set(MEANING) == set(names())
    shown = CliRunner().invoke(main, ["scheduler", "run", "--help"], terminal_width=120).output
    page = (Path(__file__).parents[2] / "docs" / "scheduler.md").read_text()
    for name in names():
        assert flag_of(name) in shown
        assert f"`{name}`" in page, name
    assert "[default: (300.0)]" in shown
