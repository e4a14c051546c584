# SPDX-License-Identifier: Apache-2.0
"""`slipstream setup`: what Slurm's files need, as a diff; applied when asked, and taken back."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import click

from slipstream.cli.daemon_api import json_option, show_json
from slipstream.cli.doctor.facts import settings_in
from slipstream.cli.setup import applied, edits
from slipstream.cli.setup.edits import SetupError
from slipstream.sandbox import SandboxError, plugins

_DEFAULT_CONF: Final = "/etc/slurm/slurm.conf"
_DEFAULT_LIBRARY: Final = Path("/usr/lib/slipstream/slipstream.so")
_DEFAULT_LUA: Final = Path("/usr/share/slipstream/lua")
_SELECT: Final = Path("/usr/lib/slipstream/select")
_UNIT: Final = "/usr/lib/systemd/system/slipstream-scheduler.service"
_UNITS: Final = """\
systemctl enable --now slipstream-scheduler slipstream-watchdog    beside slurmctld
     systemctl enable --now slipstream-coordinator                      on every node with GPUs"""
_BY_HAND: Final = """\
start 'slipstream scheduler run' beside slurmctld, 'python -m slipstream.coordinator' on nodes"""
_NEXT: Final = """\
Next:
  1. the same files on every host (or configless Slurm), {library} on login and compute nodes
  2. restart slurmctld and every slurmd: GRES and plugins are read at their start only
  3. {start}
  4. slipstream doctor
To take it back: slipstream setup --undo"""
_BACK: Final = """\
Next: restart slurmctld and every slurmd, once no job holds a slot any more
Again: slipstream setup --apply"""


@click.command()
@json_option
@click.option(
    "--conf",
    type=click.Path(path_type=Path, dir_okay=False),
    help="slurm.conf; else what slurmctld says, else $SLURM_CONF.",
)
@click.option("--guests-per-gpu", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option(
    "--library",
    type=click.Path(path_type=Path, dir_okay=False),
    default=_DEFAULT_LIBRARY,
    show_default=True,
    help="Where the SPANK plugin is to be on all hosts; built there if it is not.",
)
@click.option(
    "--lua",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DEFAULT_LUA,
    show_default=True,
    help="Where our Lua modules are to be beside slurmctld; copied there if they are not.",
)
@click.option(
    "--select-wrapper",
    "wraps",
    is_flag=True,
    help="Also have slurmctld follow advice by the select wrapper, if there is one for this Slurm.",
)
@click.option(
    "--cpus-for-guests",
    "leaves",
    is_flag=True,
    help="Also lower DefCpuPerGPU where owners would hold all CPUs of a node.",
)
@click.option("--apply", "applies", is_flag=True, help="Write it. Without this nothing is changed.")
@click.option("--undo", "undoes", is_flag=True, help="Put back what was there before --apply.")
def setup(
    conf: Path | None,
    guests_per_gpu: int,
    library: Path,
    lua: Path,
    **flags: bool,
) -> None:
    """Show what slurm.conf, gres.conf, plugstack.conf and job_submit.lua need, as a diff.

    Nothing is changed without --apply, and --undo puts back what was there. The site's own settings
    and rules stay: words are added to lists, lines at ends. Run it where slurmctld runs.

    \b
    Examples:
      slipstream setup
      slipstream setup --apply
      slipstream setup --cpus-for-guests --apply
      slipstream setup --undo
    """
    if flags["applies"] and flags["undoes"]:
        raise click.UsageError("--apply and --undo: which of the two?")
    try:
        conf = conf or _conf()
        if flags["undoes"]:
            back = applied.undo(conf.parent)
            if flags["as_json"]:
                show_json({"v": 1, "applied": False, "as_it_was": list(map(str, back))})
            else:
                click.echo("\n".join([*(f"as it was: {path}" for path in back), _BACK]))
            return
        texts = _wanted(conf, guests_per_gpu, library, lua)
        if flags["leaves"]:
            texts[conf] = edits.cpus_for_guests(texts[conf])
        if flags["wraps"]:
            texts[conf] = _wrapped(texts[conf])
        notes = edits.notes(texts[conf])
        texts = {path: text for path, text in texts.items() if text != _text(path)}
        diffs = {str(path): _diff(path, text) for path, text in texts.items()}
        if flags["applies"] and texts:
            applied.apply(conf.parent, texts, _install(library, lua))
        if flags["as_json"]:
            show_json({"v": 1, "applied": flags["applies"], "notes": notes, "diffs": diffs})
        else:
            _show(diffs, notes, library, applies=flags["applies"])
    except (SetupError, SandboxError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _wanted(conf: Path, guests_per_gpu: int, library: Path, lua: Path) -> dict[Path, str]:
    """All files, with what they must say."""
    folder = conf.parent
    slurm = edits.slurm_conf(conf.read_text(), guests_per_gpu)
    gres, plugstack, submit = (
        folder / name for name in ("gres.conf", "plugstack.conf", "job_submit.lua")
    )
    if drop_in := edits.plugstack_folder(_text(plugstack), library):
        plugstack = Path(drop_in) / "slipstream.conf"
    return {
        conf: slurm,
        gres: edits.gres_conf(_text(gres), slurm),
        plugstack: edits.plugstack_conf(_text(plugstack), library),
        submit: edits.job_submit_lua(_text(submit), lua),
    }


def _wrapped(slurm: str) -> str:
    """With the wrapper that was built for exactly the slurmctld of this host."""
    try:
        version = subprocess.run(
            ("dpkg-query", "-W", "-f", "${Version}", "slurmctld"),
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    except OSError:
        version = ""
    folder = _SELECT / version
    if not version or not (folder / "select_cons_tres.so").exists():
        there = ", ".join(sorted(one.name for one in _SELECT.glob("*"))) or "none"
        raise SetupError(
            f"no select wrapper for slurmctld {version or '(no package of Debian)'} in {_SELECT}; "
            f"there: {there}. Without --select-wrapper advice is carried out by soft hold"
        )
    return edits.plugin_dir(slurm, folder, (folder / ".stock").read_text().strip())


def _show(diffs: dict[str, str], notes: list[str], library: Path, *, applies: bool) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if not diffs:
        click.echo("Slurm's files say all that Slipstream needs")
        return
    click.echo("".join(diffs.values()), nl=False)
    if applies:
        start = _UNITS if Path(_UNIT).exists() else _BY_HAND
        click.echo(f"written: {', '.join(diffs)}\n{_NEXT.format(library=library, start=start)}")
    else:
        click.echo("nothing was changed; --apply writes it")


def _diff(path: Path, text: str) -> str:
    lines = difflib.unified_diff(
        _text(path).splitlines(),
        text.splitlines(),
        *(f"{path}", f"{path} with Slipstream"),
        n=1,
        lineterm="",
    )
    return "".join(f"{line}\n" for line in lines)


def _install(library: Path, lua: Path) -> list[Path]:
    """Have there what the files name, before Slurm reads them; says what was not there."""
    installed = []
    if not library.exists():
        with tempfile.TemporaryDirectory() as folder:
            built = plugins.spank_library(Path(folder))
            library.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, library)
        installed.append(library)
    modules = plugins.lua_modules()
    for module in (path for path in modules.rglob("*.lua") if "examples" not in path.parts):
        target = lua / module.relative_to(modules)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(module, target)
            installed.append(target)
    return installed


def _conf() -> Path:
    try:
        shown = subprocess.run(
            ("scontrol", "show", "config"), capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        shown = ""
    named = settings_in(shown).get("SLURM_CONF") or os.environ.get("SLURM_CONF") or _DEFAULT_CONF
    if not Path(named).exists():
        raise SetupError(f"there is no {named}; --conf names another")
    return Path(named)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
