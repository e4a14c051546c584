# SPDX-License-Identifier: Apache-2.0
"""`slipstream sandbox …`: a real Slurm cluster with simulated GPUs on this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from slipstream.cli.daemon_api import json_option
from slipstream.cli.table import coloured
from slipstream.core.classes import Mode
from slipstream.sandbox import Sandbox, SandboxError, Shape, gpus
from slipstream.sandbox.layout import default_home
from slipstream.sandbox.plan import Plan
from slipstream.sandbox.sandbox import all_sandboxes
from slipstream.sandbox.select_plugin import plugin_dir
from slipstream.sandbox.status import Status, status_of

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULTS = Shape()


class _Group(click.Group):
    """Shows a SandboxError as one clear message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 (click's own signature)
        try:
            return super().invoke(ctx)
        except SandboxError as error:
            raise click.ClickException(str(error)) from error


def _name_and_home(command: Callable[..., None]) -> Callable[..., None]:
    home = click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_home,
        show_default="$SLIPSTREAM_SANDBOX_HOME or /var/lib/slipstream/sandbox",
        help="Folder that holds all sandboxes.",
    )
    name = click.option(
        "--name", default="sandbox", show_default=True, help="Several can be up side by side."
    )
    return name(home(command))


@click.group(cls=_Group)
def sandbox() -> None:
    """A real Slurm cluster with simulated GPUs, on this machine, in seconds.

    munged, slurmctld and slurmd are the installed ones; only the GPUs are simulated. Nothing
    outside the sandbox's own folder is touched, and 'down' leaves no trace.
    """


@sandbox.command()
@_name_and_home
@click.option("--nodes", default=DEFAULTS.nodes, show_default=True, help="Number of nodes.")
@click.option("--gpus-per-node", default=DEFAULTS.gpus_per_node, show_default=True)
@click.option(
    "--slots-per-gpu",
    default=DEFAULTS.slots_per_gpu,
    show_default=True,
    help="Guests' seats on each GPU (gres/slot).",
)
@click.option("--racks", default=DEFAULTS.racks, show_default=True, help="Racks in the topology.")
@click.option("--cpus-per-node", default=DEFAULTS.cpus_per_node, show_default=True)
@click.option("--node-memory-mib", default=DEFAULTS.node_memory_mib, show_default=True)
@click.option("--gpu-memory-mib", default=DEFAULTS.gpu_memory_mib, show_default=True)
@click.option(
    "--owners-hold-all-cpus",
    is_flag=True,
    help="Each GPU comes with its part of the CPUs, so that owners leave none to guests.",
)
@click.option("--stock", is_flag=True, help="Plain Slurm, with nothing of ours in it.")
@click.option(
    "--daemons/--no-daemons",
    default=True,
    show_default=True,
    help="With our scheduler and coordinators (never with --stock).",
)
@click.option(
    "--mode",
    type=click.Choice([str(one) for one in Mode]),
    default=str(Mode.ADVISE),
    show_default=True,
    help="The cluster's mode from the start; 'slipstream mode' changes it.",
)
@click.option("--accounting", is_flag=True, help="With slurmdbd, MariaDB and two accounts.")
@click.option(
    "--netns", is_flag=True, help="Each node in a network namespace, racks behind slow uplinks."
)
@click.option(
    "--uplink-mbit",
    default=DEFAULTS.uplink_mbit,
    show_default=True,
    help="With --netns: the rate of each rack's uplink.",
)
@click.option("--port-base", type=int, help="First of a row of ports; default: any free ones.")
def up(
    name: str,
    home: Path,
    port_base: int | None,
    mode: str,
    **asked: Any,  # noqa: ANN401 (click's)
) -> None:
    """Start a sandbox and leave it running.

    \b
    Examples:
      slipstream sandbox up
      slipstream sandbox up --mode enforce
      slipstream sandbox up --name two --nodes 2 --gpus-per-node 8 --racks 1
      slipstream sandbox up --netns --uplink-mbit 100
    """
    _as_root()
    switches = {key: asked.pop(key) for key in ("stock", "daemons", "accounting", "netns")}
    switches["daemons"] &= not switches["stock"]
    plan = Plan(
        shape=Shape(**asked),
        port_base=port_base,
        mode=mode,
        plugin_dir="" if switches["stock"] else _select_wrapper(),
        **switches,
    )
    wanted = Sandbox.named(name, home)
    begun = time.monotonic()
    wanted.up(plan, lambda step, took_s: click.echo(f"  {step:<22}{took_s:6.2f} s", err=True))
    click.echo(
        f"sandbox {name!r} is up after {time.monotonic() - begun:.1f} s: {plan.shape.sentence()}"
    )
    flag = "" if name == "sandbox" else f" --name {name}"
    click.echo(f"  try:  slipstream sandbox run{flag} sinfo")
    if plan.daemons:
        click.echo(f"        slipstream sandbox run{flag} slipstream jobs")
    click.echo(f"  end:  slipstream sandbox down{flag}")


@sandbox.command()
@_name_and_home
@click.option("--all", "every", is_flag=True, help="Every sandbox in this home.")
def down(name: str, home: Path, *, every: bool) -> None:
    """End a sandbox and remove every trace of it, also of one half-started."""
    if not home.exists():
        click.echo("no sandbox there, nothing to end")
        return
    _as_root()
    for one in all_sandboxes(home) if every else [Sandbox.named(name, home)]:
        was = one.down()
        click.echo(f"sandbox {one.layout.name!r} " + ("is down" if was else "was not up"))


@sandbox.command()
@_name_and_home
@json_option
def status(name: str, home: Path, *, as_json: bool) -> None:
    """Show a sandbox's daemons, nodes and GPUs; exit code 1 if it is not all well."""
    found = status_of(Sandbox.named(name, home))
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        _show(found)
    sys.exit(0 if found.well else 1)


@sandbox.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@_name_and_home
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(name: str, home: Path, command: tuple[str, ...]) -> None:
    """Run any command against a sandbox: sbatch, squeue, scontrol, bash.

    \b
    Examples:
      slipstream sandbox run sinfo
      slipstream sandbox run sbatch --gres=gpu:1 examples/train.sh
      slipstream sandbox run bash            a shell in which all commands talk to it
    """
    chosen = Sandbox.named(name, home)
    chosen.plan()
    argv = chosen.argv(command)
    try:
        os.execvpe(argv[0], argv, chosen.environment)  # noqa: S606 (to run a command is the point)
    except OSError as error:
        raise click.ClickException(f"cannot run {argv[0]}: {error.strerror}") from error


@sandbox.command()
@_name_and_home
@click.argument("daemon", default="")
@click.option("-n", "lines", default=20, show_default=True, help="How many lines of each.")
@click.option("-f", "--follow", is_flag=True, help="Go on as they grow.")
def logs(name: str, home: Path, daemon: str, lines: int, *, follow: bool) -> None:
    """Show the last lines of a sandbox's logs: all, or those of DAEMON (slurmctld, slurmd-n1 …)."""
    folder = Sandbox.named(name, home).layout.log
    # A daemon that logs to its terminal, and one that ended early, have only a .stderr.
    known = {path.stem: path for kind in ("*.stderr", "*.log") for path in folder.glob(kind)}
    chosen = sorted(one for one in known if one == daemon or not daemon)
    if not chosen:
        raise SandboxError(
            f"no log of {daemon or 'anything'} in sandbox {name!r}; there are: "
            + (", ".join(sorted(known)) or "none, it is not up")
        )
    flags = ["-n", str(lines)] + (["-F"] if follow else [])
    os.execvp("tail", ["tail", *flags, *(str(known[one]) for one in chosen)])  # noqa: S606 (its job)


@sandbox.command()
@_name_and_home
@click.argument("node")
@click.argument("gpu", type=int)
@click.option("--lost", "what", flag_value="lost", help="It falls off the bus: all calls fail.")
@click.option("--healed", "what", flag_value="healed", help="It is reset and back.")
@click.option("--xid", type=click.IntRange(1, 1000), help="The driver reports this XID error.")
def fault(name: str, home: Path, node: str, gpu: int, what: str | None, xid: int | None) -> None:
    """Break a simulated GPU, or mend it.

    \b
    Examples:
      slipstream sandbox fault n1 0 --lost
      slipstream sandbox fault n1 0 --healed
      slipstream sandbox fault n2 3 --xid 48      a double-bit memory error
    """
    chosen = Sandbox.named(name, home)
    shape = chosen.plan().shape
    if node not in shape.node_names or not 0 <= gpu < shape.gpus_per_node:
        raise SandboxError(
            f"no GPU {gpu} on {node}: there are nodes {', '.join(shape.node_names)} "
            f"with GPUs 0 to {shape.gpus_per_node - 1}"
        )
    path = chosen.layout.gpu_state(node)
    if xid is not None:
        gpus.inject_xid(path, gpu, xid)
    elif what == "lost":
        gpus.lose(path, gpu)
    elif what == "healed":
        gpus.heal(path, gpu)
    else:
        raise SandboxError("say what: --lost, --healed or --xid NUMBER")
    click.echo(f"GPU {gpu} of {node}: " + (what or f"XID {xid}"))
    if what == "lost":
        flag = "" if name == "sandbox" else f" --name {name}"
        click.echo(f"back again: slipstream sandbox fault{flag} {node} {gpu} --healed")


def _select_wrapper() -> str:
    """PluginDir with the select wrapper; nothing, and why, where it cannot be built."""
    try:
        return plugin_dir()
    except SandboxError as error:
        click.echo(f"going on without the select wrapper: {error}", err=True)
        return ""


def _show(found: Status) -> None:
    console = Console(no_color=not coloured())
    if not found.daemons:
        console.print(f"sandbox {found.name!r} is not up")
        return
    table = Table("daemon", "pid", "", title=f"sandbox {found.name!r}", title_justify="left")
    for daemon in found.daemons:
        table.add_row(daemon.name, str(daemon.pid), "alive" if daemon.alive else "[red]dead[/red]")
    console.print(table)
    if found.error:
        console.print(f"[red]{found.error}[/red]")
        return
    table = Table("node", "state", "GPU", "use %", "memory MiB", "processes")
    for gpu in found.gpus:
        table.add_row(
            gpu.node,
            found.node_states.get(gpu.node, "?"),
            str(gpu.index),
            str(gpu.use_pct),
            f"{gpu.memory_used_mib} / {gpu.memory_mib}",
            str(gpu.processes),
        )
    console.print(table)


def _as_root() -> None:
    """Start this very command again through sudo where that is needed and possible."""
    if os.geteuid() == 0:
        return
    sudo = shutil.which("sudo")
    if not sudo:
        raise SandboxError("a sandbox needs root (device nodes, slurmd), and there is no sudo here")
    again = [sys.executable, "-m", "slipstream.cli", *sys.argv[1:]]
    keep = "--preserve-env=PATH,SLIPSTREAM_SANDBOX_HOME"
    os.execv(sudo, [sudo, keep, *again])  # noqa: S606 (the same command, as root)
