# SPDX-License-Identifier: Apache-2.0
"""What `slipstream setup` makes of a site's files, and that it can always be taken back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main
from slipstream.cli.setup import applied, edits
from slipstream.cli.setup.edits import SetupError

pytestmark = pytest.mark.unit

SITE = """\
# A site of its own.
ClusterName=deep
#GresTypes=gpu,mps
gresTypes=gpu,nic
SchedulerParameters=bf_interval=30   # tuned
JobSubmitPlugins=require_timelimit
NodeName=DEFAULT CPUs=64 Gres=gpu:a100:8(S:0-1),nic:2
NodeName=big[1-4] RealMemory=512000
NodeName=small[1-2] CPUs=16 \\
  Gres=gpu:2 RealMemory=64000
NodeName=login1 CPUs=4 Gres=nic:1
PartitionName=batch Nodes=ALL
"""


def test_a_site_keeps_all_it_has() -> None:
    """Words come into its lists, slots to its GPUs; nothing else changes, and not twice."""
    slurm = edits.slurm_conf(SITE, guests_per_gpu=3)
    assert slurm.splitlines() == [
        "# A site of its own.",
        "ClusterName=deep",
        "#GresTypes=gpu,mps",
        "gresTypes=gpu,nic,slot",
        "SchedulerParameters=bf_interval=30,defer   # tuned",
        "JobSubmitPlugins=require_timelimit,lua",
        "NodeName=DEFAULT CPUs=64 Gres=gpu:a100:8(S:0-1),nic:2,slot:24",
        "NodeName=big[1-4] RealMemory=512000",
        "NodeName=small[1-2] CPUs=16 \\",
        "  Gres=gpu:2,slot:6 RealMemory=64000",
        "NodeName=login1 CPUs=4 Gres=nic:1",
        "PartitionName=batch Nodes=ALL",
        "JobFileAppend=1",
    ]
    assert edits.slurm_conf(slurm, guests_per_gpu=5) == slurm


def test_the_select_wrapper_is_looked_for_first() -> None:
    """Before the stock plugins or the site's own; one of another Slurm is left out; not twice."""
    ours = Path("/usr/lib/slipstream/select/22.05.8-4")
    text = edits.plugin_dir("ClusterName=deep", ours, "/usr/lib/slurm")
    assert text.splitlines()[-1] == f"PluginDir={ours}:/usr/lib/slurm"
    assert edits.plugin_dir(text, ours, "/usr/lib/slurm") == text
    newer = Path("/usr/lib/slipstream/select/24.11.5-1")
    assert f"PluginDir={newer}:/usr/lib/slurm\n" in edits.plugin_dir(text, newer, "/usr/lib/slurm")
    site = edits.plugin_dir("PluginDir=/opt/own:/usr/lib/slurm # both\n", ours, "/usr/lib/slurm")
    assert site == f"PluginDir={ours}:/opt/own:/usr/lib/slurm # both\n"


def test_gres_conf_counts_slots_on_the_nodes_that_have_some() -> None:
    """Also where a default gives them; a file that knows slots is left alone."""
    slurm = edits.slurm_conf(SITE, guests_per_gpu=3)
    gres = edits.gres_conf("AutoDetect=nvml", slurm)
    assert gres.splitlines() == [
        "AutoDetect=nvml",
        "NodeName=big[1-4] Name=slot Count=24 Flags=CountOnly",
        "NodeName=small[1-2] Name=slot Count=6 Flags=CountOnly",
    ]
    assert edits.gres_conf(gres, slurm) == gres


def test_a_cluster_without_gpus_is_told_so() -> None:
    """And not given empty files."""
    with pytest.raises(SetupError, match="no NodeName line"):
        edits.gres_conf("", edits.slurm_conf("NodeName=n1 CPUs=2\n", guests_per_gpu=3))


def test_a_site_has_its_say_before_us() -> None:
    """Our lines come last; without a file of its own the functions are there all the same."""
    own = "function slurm_job_submit() return slurm.ERROR end"
    text = edits.job_submit_lua(own, Path("/x/lua"))
    assert text.startswith(own + "\n")
    assert text.rstrip().endswith("slipstream.wrap(slurm_job_submit, slurm_job_modify)")
    assert edits.job_submit_lua(text, Path("/x/lua")) == text
    assert "function slurm_job_modify" in edits.job_submit_lua("", Path("/x/lua"))


def test_what_a_person_must_decide_is_said() -> None:
    """Files that are included, and owners that get every CPU."""
    assert edits.notes(SITE) == []
    told = edits.notes("include nodes.conf\nPartitionName=a DefCpuPerGPU=16\n")
    assert [line.split()[0] for line in told] == ["slurm.conf", "DefCpuPerGPU"]


FULL = SITE + "PartitionName=gpu Nodes=big[1-4] DefCpuPerGPU=8 # all of them\n#DefCpuPerGPU=9\n"


def test_owners_leave_cpus_to_guests_if_it_is_wanted() -> None:
    """The number that leaves one beside each GPU of every node; the rest of the file stays."""
    (note,) = edits.notes(FULL)
    assert "DefCpuPerGPU=8: owners get all CPUs" in note
    assert "--cpus-for-guests makes it 7" in note
    fewer = edits.cpus_for_guests(FULL)
    assert fewer == FULL.replace("DefCpuPerGPU=8 #", "DefCpuPerGPU=7 #")
    assert edits.notes(fewer) == []
    assert edits.cpus_for_guests(fewer) == fewer
    cores = "NodeName=n Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 Gres=gpu:4\nDefCpuPerGPU=6\n"
    assert edits.cpus_for_guests(cores) == cores
    assert "=7" in edits.cpus_for_guests(cores.replace("GPU=6", "GPU=8"))


def test_cpus_for_guests_are_part_of_the_diff_and_of_its_undoing(tmp_path: Path) -> None:
    """As every other line."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(FULL)
    shown = run(tmp_path)
    assert "note: DefCpuPerGPU=8" in shown.output
    assert "+PartitionName=gpu" not in shown.output
    done = run(tmp_path, "--cpus-for-guests", "--apply")
    assert "+PartitionName=gpu Nodes=big[1-4] DefCpuPerGPU=7" in done.output
    assert "DefCpuPerGPU=7 #" in conf.read_text()
    run(tmp_path, "--undo")
    assert conf.read_text() == FULL


def test_a_folder_of_plugins_gets_a_file_of_its_own(tmp_path: Path) -> None:
    """Where plugstack.conf includes one; the folder itself is the site's, and stays."""
    (tmp_path / "slurm.conf").write_text(SITE)
    folder = tmp_path / "plugstack.conf.d"
    folder.mkdir()
    plugstack = tmp_path / "plugstack.conf"
    plugstack.write_text(f"include {folder}/*.conf\n")
    assert run(tmp_path, "--apply").exit_code == 0
    assert (folder / "slipstream.conf").read_text() == f"optional {tmp_path / 'lib' / 's.so'}\n"
    assert plugstack.read_text() == f"include {folder}/*.conf\n"
    assert "say all that Slipstream needs" in run(tmp_path, "--apply").output
    assert run(tmp_path, "--undo").exit_code == 0
    assert list(folder.iterdir()) == []


def test_a_plugin_that_is_loaded_from_elsewhere_is_not_loaded_twice() -> None:
    """Somebody has installed it by hand; a comment about it is not that."""
    ours = "required /opt/slurm/lib/slipstream.so\n"
    assert edits.plugstack_conf(ours, Path("/usr/lib/slipstream/slipstream.so")) == ours
    assert edits.plugstack_folder(f"include /x/plugstack.conf.d/*\n{ours}", Path("/x/s.so")) == ""
    assert "optional /x/slipstream.so" in edits.plugstack_conf(
        f"# {ours}", Path("/x/slipstream.so")
    )


def run(folder: Path, *words: str) -> Result:
    """The command for a site in a folder."""
    where = (f"--conf={folder / 'slurm.conf'}", f"--library={folder / 'lib' / 's.so'}")
    return CliRunner().invoke(main, ["setup", *where, f"--lua={folder / 'lua'}", *words])


def contents(folder: Path) -> dict[Path, bytes]:
    """Everything below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_shown_applied_and_taken_back(tmp_path: Path) -> None:
    """A diff changes nothing; applied twice is once; taken back, not a byte is left."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(SITE)
    conf.chmod(0o640)
    before = contents(tmp_path)
    shown = run(tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "+gresTypes=gpu,nic,slot" in shown.output
    assert "nothing was changed" in shown.output
    assert contents(tmp_path) == before
    done = run(tmp_path, "--apply")
    assert done.exit_code == 0, done.output
    assert conf.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "lib" / "s.so").read_bytes()[:4] == b"\x7fELF"
    assert (tmp_path / "lua" / "slipstream.lua").exists()
    assert "say all that Slipstream needs" in run(tmp_path, "--apply").output
    back = run(tmp_path, "--undo")
    assert back.exit_code == 0
    assert f"as it was: {conf}" in back.output
    assert "Again: slipstream setup --apply" in back.output
    assert contents(tmp_path) == before


def test_programs_get_the_same_as_data(tmp_path: Path) -> None:
    """A diff for each file, whether it was written, and what came back."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(FULL)
    told = json.loads(run(tmp_path, "--json").stdout)
    assert (told["v"], told["applied"], len(told["notes"])) == (1, False, 1)
    assert "+gresTypes=gpu,nic,slot" in told["diffs"][str(conf)]
    assert json.loads(run(tmp_path, "--json", "--apply").stdout)["applied"] is True
    assert json.loads(run(tmp_path, "--json").stdout)["diffs"] == {}
    assert str(conf) in json.loads(run(tmp_path, "--json", "--undo").stdout)["as_it_was"]
    assert conf.read_text() == FULL


def test_a_file_that_somebody_changed_since_is_not_overwritten(tmp_path: Path) -> None:
    """Nothing at all is taken back then; the message names the file and where the old one is."""
    (tmp_path / "slurm.conf").write_text(SITE)
    assert run(tmp_path, "--apply").exit_code == 0
    with (tmp_path / "slurm.conf").open("a") as conf:
        conf.write("MaxJobCount=5\n")
    there = contents(tmp_path)
    refused = run(tmp_path, "--undo")
    assert refused.exit_code == 1
    assert "changed by somebody since" in refused.output
    assert str(tmp_path / "slurm.conf") in refused.output
    assert contents(tmp_path) == there


def test_killed_before_the_last_file_it_can_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record was there first."""
    names = [tmp_path / name for name in ("a", "b", "c")]
    names[0].write_text("old a")
    names[1].write_text("old b")
    before = contents(tmp_path)
    write = applied._write  # noqa: SLF001 (to die in it)

    def dies(path: Path, text: str) -> None:
        if path == names[1]:
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(applied, "_write", dies)
    with pytest.raises(KeyboardInterrupt):
        applied.apply(tmp_path, dict.fromkeys(names, "new"))
    monkeypatch.undo()
    assert names[0].read_text() == "new"
    applied.undo(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("words", [("--undo",), ("--apply", "--undo"), ("--guests-per-gpu=0",)])
def test_what_makes_no_sense_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Without a traceback, and without a change."""
    (tmp_path / "slurm.conf").write_text(SITE)
    refused = run(tmp_path, *words)
    assert refused.exit_code in (1, 2)
    assert isinstance(refused.exception, SystemExit)
    assert (tmp_path / "slurm.conf").read_text() == SITE
