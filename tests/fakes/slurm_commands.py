# SPDX-License-Identifier: Apache-2.0
"""The commands of Slurm 22.05.8 over a cluster in memory: a `CommandRunner` for the CLI backend.

It understands exactly what the adapter renders. A command, option or key it does not know is a bug
of the adapter or a hole in the fake, and raises `UnknownCommandError`: it never guesses.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ClusterShell.NodeSet import NodeSet
from ClusterShell.RangeSet import RangeSet

from fakes.slurm_cluster import FakeCluster, FakeNode, Refused
from fakes.slurm_job import FakeJob
from fakes.slurm_options import SBATCH, UPDATE_ALWAYS, UPDATE_WHILE_PENDING
from slipstream.slurm_plugin.errors import Kind, SlurmError
from slipstream.slurm_plugin.run import Completed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VERSION = "22.05.8"
_META = {"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}, "release": VERSION}}
_VERBS: dict[str, Callable[[FakeCluster, FakeJob], None]] = {
    "suspend": FakeCluster.suspend,
    "resume": FakeCluster.resume,
    "requeue": lambda cluster, job: cluster.requeue(job, hold=False),
    "requeuehold": lambda cluster, job: cluster.requeue(job, hold=True),
    "hold": FakeCluster.hold,
    "release": FakeCluster.release,
}
_BY_SCANCEL = ("cancel", "signal")
_SIGNAL_TARGETS: tuple[list[str], ...] = ([], ["--batch"], ["--full"])
_AWAY = "Unable to contact slurm controller (connect failure)"


class UnknownCommandError(AssertionError):
    """The adapter rendered something this fake does not know."""

    def __init__(self, what: str, argv: Sequence[str]) -> None:
        super().__init__(f"the fake Slurm does not know {what} in: {shlex.join(argv)}")


@dataclass
class FakeCommands:
    """Runs commands on a `FakeCluster`. Every command takes a moment of its time."""

    cluster: FakeCluster
    ran: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> Completed:
        """Carry out one command."""
        self.ran.append(tuple(argv))
        known: dict[str, Callable[[list[str]], str]] = {
            "scontrol": self._scontrol,
            "squeue": self._squeue,
            "sinfo": self._sinfo,
            "scancel": lambda words: self._scancel(words, timeout_s),
            "sbatch": lambda words: self._sbatch(words, stdin),
        }
        if argv[0] not in known:
            raise UnknownCommandError(argv[0], argv)
        try:
            stdout, stderr, code = known[argv[0]](list(argv[1:])), "", 0
        except _Ended as ended:
            stdout, stderr, code = ended.stdout, ended.stderr, ended.code
        return Completed(tuple(argv), code, stdout, stderr)

    def _scontrol(self, words: list[str]) -> str:
        plain = {
            ("--version",): lambda: f"slurm-wlm {VERSION}\n",
            ("ping",): self._ping,
            ("show", "config"): self._config,
            ("show", "topology"): self._topology,
        }
        if answer := plain.get(tuple(words)):
            return answer()
        match words:
            case ["-o", "show", "partition", "batch"]:
                self._must_be_up("slurm_load_partitions error: ")
                return f"PartitionName=batch MaxTime={self.cluster.longest} MinNodes=0\n"
            case ["listpids", job_id, node]:
                return self._list_pids(job_id, node)
            case ["update", job, *pairs] if job.startswith("JobId="):
                return self._on_each(
                    "update", job.removeprefix("JobId="), lambda one: self._update(one, pairs)
                )
            case [verb, ref] if verb in _VERBS:
                return self._on_each(verb, ref, lambda one: _VERBS[verb](self.cluster, one))
        raise UnknownCommandError(f"scontrol {' '.join(words)}", ["scontrol", *words])

    def _squeue(self, words: list[str]) -> str:
        if words != ["--json", "--all", "--states=all"]:
            raise UnknownCommandError(f"squeue {' '.join(words)}", ["squeue", *words])
        return self._json("jobs", [job.to_json() for job in self.cluster.jobs.values()])

    def _sinfo(self, words: list[str]) -> str:
        if words != ["--json", "--all"]:
            raise UnknownCommandError(f"sinfo {' '.join(words)}", ["sinfo", *words])
        return self._json("nodes", [self._node(node) for node in self.cluster.nodes])

    def _scancel(self, words: list[str], timeout_s: float) -> str:
        match words:
            case ["--verbose", ref]:
                said = f"scancel: Terminating job {ref}\n"
                try:
                    for job in self._found("cancel", ref):
                        self.cluster.cancel(job)
                except _Ended as ended:
                    raise _Ended(stderr=said + ended.stderr) from ended  # with exit code 0
                return ""
            case [signal, *to, ref] if signal.startswith("--signal=") and to in _SIGNAL_TARGETS:
                for job in self._found("signal", ref):
                    self._signal(job, signal.removeprefix("--signal="), words, timeout_s)
                return ""
        raise UnknownCommandError(f"scancel {' '.join(words)}", ["scancel", *words])

    def _signal(self, job: FakeJob, name: str, words: list[str], timeout_s: float) -> None:
        if job.state == "SUSPENDED":
            raise _kill_error(str(job.job_id), "Job can not be altered now, try again later", 228)
        if job.state != "RUNNING":
            # scancel tries again for minutes; the adapter's runner ends it before.
            self.cluster.advance(timeout_s)
            raise SlurmError(("scancel", *words), f"no answer within {timeout_s} s", Kind.TIMED_OUT)
        if "--batch" in words or "--full" in words:
            job.signals.append(name)

    def _sbatch(self, words: list[str], script: str) -> str:
        if not script.startswith("#!"):
            raise _Ended(stderr="sbatch: error: This does not look like a batch script.", code=1)
        self._must_be_up("sbatch: error: Batch job submission failed: ")
        now_s = self.cluster.now_s
        job = FakeJob(job_id=0, submitted_at_s=now_s, eligible_at_s=now_s)
        job.stubborn = "trap '' TERM" in script
        tasks: tuple[int, ...] = ()
        at = words.index("/dev/stdin") if "/dev/stdin" in words else len(words)
        for word in words[:at]:  # what follows is the script's
            option, _, value = word.partition("=")
            if option == "--array":
                ranges, _, most = value.partition("%")
                tasks = tuple(int(task) for task in RangeSet(ranges))
                job.array_most_at_once = int(most or 0)
            elif option in SBATCH:
                SBATCH[option](job, value)
            elif option != "--parsable":
                raise UnknownCommandError(f"option {word}", ["sbatch", *words])
        job.cpus, job.task_count = (
            max(job.cpus, job.node_count),
            max(job.task_count, job.node_count),
        )
        try:
            return f"{self.cluster.add(job, tasks)}\n"
        except Refused as refused:
            failed = f"sbatch: error: Batch job submission failed: {refused}"
            raise _Ended(stderr=failed, code=1) from refused

    def _update(self, job: FakeJob, pairs: list[str]) -> None:
        if job.ended:
            raise Refused("Job has already finished")
        for pair in pairs:
            key, _, value = pair.partition("=")
            if key in UPDATE_ALWAYS:
                UPDATE_ALWAYS[key](job, value)
            elif key not in UPDATE_WHILE_PENDING:
                raise UnknownCommandError(f"{pair}", ["scontrol", "update", *pairs])
            elif job.state != "PENDING" and not job.comes_back:
                nodes = key in ("ReqNodeList", "ExcNodeList")
                raise Refused(
                    "Invalid node name specified" if nodes else "Job is no longer pending execution"
                )
            else:
                UPDATE_WHILE_PENDING[key](self.cluster, job, value)
        self.cluster.must_be_valid(job)

    def _on_each(self, verb: str, ref: str, act: Callable[[FakeJob], None]) -> str:
        """Act on a job or on each task; Slurm names a task before its error, a job behind it."""
        for job in self._found(verb, ref):
            try:
                act(job)
            except Refused as refused:
                said = f"{ref}: {refused}" if job.array_job_id else f"{refused} for job {ref}"
                raise _Ended(stderr=said, code=1) from refused
        return ""

    def _found(self, verb: str, ref: str) -> list[FakeJob]:
        try:
            self._must_be_up()
        except _Ended as ended:
            said = f"Unexpected message received for job {ref}"
            raise (
                _kill_error(ref, _AWAY, 8) if verb in _BY_SCANCEL else _Ended(said, 1)
            ) from ended
        try:
            return self.cluster.find(ref)
        except Refused as refused:
            raise _unknown_job(verb, ref, str(refused)) from refused

    def _list_pids(self, ref: str, node: str) -> str:
        header = "PID      JOBID    STEPID   LOCALID GLOBALID\n"
        job = self.cluster.jobs.get(int(ref))
        if job is None or not job.on_nodes or node not in job.nodes:
            said = f"JobId={ref} does not exist on node {node}."
            raise _Ended(stderr=said, code=1, stdout=header)
        pid = fake_pid(job.job_id)
        task = f"{pid:<8} {ref:<8} batch    0       0       \n"
        return header + task + f"{pid + 1:<8} {ref:<8} batch    -       -       \n"

    def _topology(self) -> str:
        self._must_be_up("slurm_load_topo error: ", code=0)
        racks = self.cluster.racks
        lines = [
            f"SwitchName={rack} Level=0 LinkSpeed=1 Nodes={_fold(nodes)}\n"
            for rack, nodes in racks.items()
        ]
        everything = _fold(node.name for node in self.cluster.nodes)
        top = f"SwitchName=domain Level=1 LinkSpeed=1 Nodes={everything} Switches={_fold(racks)}\n"
        return "".join([*lines, top])

    def _config(self) -> str:
        self._must_be_up()
        return f"Configuration data\nSLURM_VERSION           = {VERSION}\n"

    def _ping(self) -> str:
        if self.cluster.up:
            return "Slurmctld(primary) at testhost is UP\n"
        raise _Ended(stdout="Slurmctld(primary) at testhost is DOWN\n", code=1)

    def _json(self, name: str, records: list[dict[str, object]]) -> str:
        """A document; while slurmctld is away an empty one with an error in it, exit code 0."""
        error = {"description": f"Failed while looking for {name}", "error": "Unspecified error"}
        errors = [] if self.cluster.up else [error]
        found = records if self.cluster.up else []
        return json.dumps({"meta": _META, "errors": errors, name: found})

    def _node(self, node: FakeNode) -> dict[str, object]:
        used = {name: node.gres[name] - len(free) for name, free in self.cluster.free(node).items()}
        cpus_used = node.cpus - self.cluster.free_cpus(node)
        state = "idle" if not cpus_used else "mixed" if cpus_used < node.cpus else "allocated"
        return {
            "active_features": "",
            "address": "127.0.0.1",
            "alloc_cpus": cpus_used,
            "alloc_memory": 256 * cpus_used,
            "cpus": node.cpus,
            "gres": ",".join(f"{name}:{count}" for name, count in node.gres.items()),
            "gres_used": ",".join(f"{name}:{count}" for name, count in used.items()),
            "hostname": "testhost",
            "name": node.name,
            "partitions": ["batch"],
            "real_memory": 65_536,
            "reason": "",
            "slurmd_version": VERSION,
            "state": state,
            "state_flags": [],
        }

    def _must_be_up(self, prefix: str = "", code: int = 1) -> None:
        if not self.cluster.up:
            raise _Ended(stderr=prefix + _AWAY, code=code)


def fake_pid(job_id: int) -> int:
    """The process of a fake job's batch script."""
    return 10_000 + 10 * job_id


class _Ended(Exception):  # noqa: N818 (a command that ended early, not an error of the fake)
    """What a command leaves when it gives up."""

    def __init__(self, stderr: str = "", code: int = 0, stdout: str = "") -> None:
        super().__init__(stderr)
        self.stderr, self.code, self.stdout = stderr, code, stdout


def _unknown_job(verb: str, ref: str, text: str) -> _Ended:
    """The several ways 22.05 says so."""
    if verb in _BY_SCANCEL:
        return _kill_error(ref, text, 1)
    if "_" in ref:
        return _Ended(f"{ref}: {text}", 1)
    if verb in ("suspend", "resume"):
        return _Ended(f"Unexpected message received for job {ref}", 1)
    more = f"\nslurm_suspend error: {text}" if verb in ("hold", "release") else ""
    return _Ended(f"{text} for job {ref}{more}", 1)


def _kill_error(ref: str, text: str, code: int) -> _Ended:
    return _Ended(f"scancel: error: Kill job error on job id {ref}: {text}", code)


def _fold(names: Iterable[str]) -> str:
    return str(NodeSet.fromlist(list(names)))
