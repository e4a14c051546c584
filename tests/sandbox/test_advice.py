# SPDX-License-Identifier: Apache-2.0
"""Advice on a real cluster: the same scenarios by the select wrapper and by soft hold."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Protocol

import pytest

from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.plan import Plan
from slipstream.sandbox.select_plugin import plugin_dir
from slipstream.slurm_plugin import CliSlurm, Job, JobState, JobUpdate, Submission
from slipstream.slurm_plugin.advice import Advice, Binding, boot_s
from slipstream.slurm_plugin.advice_board import AdviceBoard
from slipstream.slurm_plugin.gres import Gres
from slipstream.slurm_plugin.run import SubprocessRunner, command_environment
from slipstream.slurm_plugin.soft_hold import Moment, SoftHold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

SHAPE = Shape(nodes=3, gpus_per_node=1, racks=1, cpus_per_node=8)
PROMPTLY_S = 40.0
"""A scheduling pass or two, on a machine that is busy with other tests."""


class Way(Protocol):
    """One way to carry advice out."""

    def say(self, *said: Advice) -> None:
        """Advice is given, in place of what was said of the same jobs before."""

    def as_submitted(self) -> int | None:
        """The start that Lua gives a job with advice when it is submitted."""

    def work(self) -> None:
        """What a living daemon does again and again."""

    def die(self) -> None:
        """All daemons are gone, for good."""

    def reset(self) -> None:
        """A new daemon, with nothing to say."""


class ByWrapper:
    """The board and the select wrapper."""

    def __init__(self, cluster: Sandbox) -> None:
        self.path = cluster.layout.run / "advice.board"
        self._board = AdviceBoard(self.path)

    def say(self, *said: Advice) -> None:
        for advice in said:
            self._board.put(advice)

    def as_submitted(self) -> int | None:
        return None

    def work(self) -> None:
        pass

    def die(self) -> None:
        self._board.close()

    def reset(self) -> None:
        self._board.close()
        self.path.unlink(missing_ok=True)
        self._board = AdviceBoard(self.path)


class BySoftHold:
    """StartTime and ReqNodeList, through the adapter."""

    LEASE_S = 6

    def __init__(self, slurm: CliSlurm) -> None:
        self._slurm = slurm
        self.reset()

    def say(self, *said: Advice) -> None:
        self._said |= {(one.token, one.task_id): one for one in said}

    def as_submitted(self) -> int | None:
        return int(time.time()) + self.LEASE_S

    def work(self) -> None:
        if self._alive:
            moment = Moment(time.time(), boot_s())
            hold = SoftHold(self._slurm, self.LEASE_S)
            hold.tick(self._said.values(), self._slurm.jobs(), self._slurm.nodes(), moment)

    def die(self) -> None:
        self._alive = False

    def reset(self) -> None:
        self._alive = True
        self._said: dict[tuple[str, int | None], Advice] = {}


class Bench:
    """A cluster, and one way to give advice on it."""

    def __init__(self, cluster: Sandbox, slurm: CliSlurm, way: Way) -> None:
        self.cluster = cluster
        self.slurm = slurm
        self.way = way
        self._numbers = itertools.count(int(time.time() * 1000))

    def token(self) -> str:
        """One that no job has yet."""
        return f"{next(self._numbers):016x}"

    def submit(self, token: str | None = None, *options: str, nodes: int = 1) -> int:
        """A job of one GPU per node, marked as Lua marks it before it can start."""
        job = self.slurm.submit(
            Submission(
                script="#!/bin/sh\nexec sleep 600\n",
                nodes=nodes,
                gres_per_node=(Gres("gpu"),),
                held=True,
                stdout_path="/dev/null",
                options=options,
            )
        )
        if token:
            start_at_s = self.way.as_submitted()
            hold = f" hold={start_at_s}" if start_at_s else ""
            marker = f"a site's words [slipstream v=1 token={token} class=auto{hold}]"
            self.slurm.update(job, JobUpdate(admin_comment=marker, start_at_s=start_at_s))
        self.slurm.release(job)
        return job

    def occupy(self, node: str) -> int:
        """A job without advice that holds the node's only GPU."""
        job = self.submit(None, f"--nodelist={node}")
        assert self.starts(job) == (node,)
        return job

    def advise(self, binding: Binding, *nodes: str, lease_s: int = 120) -> str:
        """Say it of a job that does not exist yet, and give its token."""
        token = self.token()
        until_boot_s = int(boot_s()) + lease_s
        self.way.say(Advice(token=token, nodes=nodes, binding=binding, until_boot_s=until_boot_s))
        return token

    def job(self, job_id: int) -> Job:
        return next(job for job in self.slurm.jobs() if job.job_id == job_id)

    def starts(self, job_id: int, within_s: float = PROMPTLY_S) -> tuple[str, ...]:
        """The nodes it started on; () if it did not within that time."""
        running = self.when(lambda: self.job(job_id).state is JobState.RUNNING, within_s)
        return self.job(job_id).nodes if running else ()

    def waits(self, job_id: int, for_s: float) -> bool:
        """Whether it is still pending after that time."""
        return not self.when(lambda: self.job(job_id).state is not JobState.PENDING, for_s)

    def when(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Whether it becomes true, while the daemon works."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            self.way.work()
            if holds():
                return True
            time.sleep(0.2)
        return False

    def clear(self) -> None:
        """No jobs, no advice."""
        for job in self.slurm.jobs():
            if not job.state.ended:
                self.slurm.cancel(job.ref)
        self.way.reset()
        assert self.when(lambda: all(job.state.ended for job in self.slurm.jobs()), 30)
        assert self.when(lambda: all(not node.cpus_used for node in self.slurm.nodes()), 30)


@pytest.fixture(scope="module", params=["wrapper", "soft hold"])
def one_bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """A cluster with and one without the wrapper."""
    by_wrapper = request.param == "wrapper"
    try:
        plan = Plan(shape=SHAPE, plugin_dir=plugin_dir() if by_wrapper else "")
    except SandboxError as error:
        pytest.skip(str(error))
    cluster = Sandbox.named("advice", tmp_path_factory.mktemp("advice"))
    pipe = cluster.begin(plan, lambda _name, _took_s: None)
    try:
        slurm = CliSlurm(SubprocessRunner(command_environment(cluster.environment)))
        yield Bench(cluster, slurm, ByWrapper(cluster) if by_wrapper else BySoftHold(slurm))
    finally:
        pipe.close()
        cluster.down()


@pytest.fixture
def bench(one_bench: Bench) -> Iterator[Bench]:
    """The cluster, empty."""
    yield one_bench
    one_bench.clear()


def test_a_required_node_is_waited_for(bench: Bench) -> None:
    """Two nodes are free, the job waits for the third, and starts there as soon as it is free."""
    owner = bench.occupy("n3")
    job = bench.submit(bench.advise(Binding.REQUIRE, "n3"))
    assert bench.waits(job, for_s=8)
    bench.slurm.cancel(owner)
    assert bench.starts(job) == ("n3",)


def test_required_nodes_that_are_free_are_taken(bench: Bench) -> None:
    """A job of two nodes starts on exactly the two it is advised, not on the first two."""
    job = bench.submit(bench.advise(Binding.REQUIRE, "n2", "n3"), nodes=2)
    assert set(bench.starts(job)) == {"n2", "n3"}


def test_an_expired_requirement_lets_the_job_start_anywhere(bench: Bench) -> None:
    """Not before it has expired, and soon after."""
    bench.occupy("n3")
    token = bench.advise(Binding.REQUIRE, "n3", lease_s=9)
    expires_s = time.monotonic() + 9
    job = bench.submit(token)
    started_on = bench.starts(job, within_s=9 + PROMPTLY_S)
    assert time.monotonic() > expires_s - 5  # Slurm, the board and soft hold count whole seconds
    assert started_on in {("n1",), ("n2",)}


def test_a_job_advised_nowhere_waits_and_holds_up_nobody(bench: Bench) -> None:
    """Every node is free and it waits; a plain job behind it starts; new advice starts it, too."""
    token = bench.advise(Binding.REQUIRE)
    job = bench.submit(token)  # first in the queue, so that the next one is behind it
    plain = bench.submit()
    assert bench.starts(plain)
    assert bench.waits(job, for_s=4)
    assert bench.job(job).reason in {"Resources", "BeginTime"}
    until_boot_s = int(boot_s()) + 120
    bench.way.say(
        Advice(token=token, nodes=("n3",), binding=Binding.REQUIRE, until_boot_s=until_boot_s)
    )
    assert bench.starts(job) == ("n3",)


def test_a_job_advised_nowhere_starts_by_its_expiry(bench: Bench) -> None:
    """Nobody says anything again: not before the advice has expired, and soon after."""
    token = bench.advise(Binding.REQUIRE, lease_s=9)
    expires_s = time.monotonic() + 9
    job = bench.submit(token, "--nodelist=n2")  # a user's own nodes do not help it past that
    bench.way.work()
    bench.way.die()
    assert bench.starts(job, within_s=9 + PROMPTLY_S) == ("n2",)
    assert time.monotonic() > expires_s - 5  # Slurm, the board and soft hold count whole seconds


def test_a_preferred_node_is_taken_if_it_is_free(bench: Bench) -> None:
    """Stock Slurm would have taken the first node."""
    assert bench.starts(bench.submit(bench.advise(Binding.PREFER, "n3"))) == ("n3",)


def test_a_preferred_node_that_is_busy_is_not_waited_for(bench: Bench) -> None:
    """The job starts elsewhere as if nothing had been said."""
    bench.occupy("n3")
    assert bench.starts(bench.submit(bench.advise(Binding.PREFER, "n3"))) in {("n1",), ("n2",)}


def test_jobs_nobody_speaks_of_are_left_alone(bench: Bench) -> None:
    """A plain job and a marked one without advice start beside a job that waits for its node."""
    bench.occupy("n3")
    waiting = bench.submit(bench.advise(Binding.REQUIRE, "n3"))
    plain = bench.submit()
    assert bench.starts(plain)
    assert bench.job(plain).admin_comment == ""
    marked = bench.submit(bench.token())
    assert bench.starts(marked)
    assert bench.job(waiting).state is JobState.PENDING


def test_the_users_own_nodelist_comes_first(bench: Bench) -> None:
    """Advice for another node does not hold up a job whose user named one."""
    job = bench.submit(bench.advise(Binding.REQUIRE, "n3"), "--nodelist=n2")
    assert bench.starts(job) == ("n2",)


def test_advice_for_nodes_that_do_not_exist_is_ignored(bench: Bench) -> None:
    """By the wrapper at once, by soft hold no later than its expiry."""
    job = bench.submit(bench.advise(Binding.REQUIRE, "n33", "gone", lease_s=9))
    assert bench.starts(job, within_s=9 + PROMPTLY_S)


def test_each_task_of_an_array_has_its_own_advice(bench: Bench) -> None:
    """Two tasks, two nodes, the other way round than Slurm would deal them."""
    token = bench.token()
    until_boot_s = int(boot_s()) + 120
    bench.way.say(
        *(
            Advice(
                token=token,
                nodes=(node,),
                binding=Binding.REQUIRE,
                until_boot_s=until_boot_s,
                task_id=task_id,
            )
            for task_id, node in ((1, "n3"), (2, "n2"))
        )
    )
    array = bench.submit(token, "--array=1-2")

    def places() -> dict[int | None, tuple[str, ...]]:
        return {
            job.array.task_id: job.nodes
            for job in bench.slurm.jobs()
            if job.array and job.array.job_id == array and job.state is JobState.RUNNING
        }

    assert bench.when(lambda: len(places()) == 2, 2 * PROMPTLY_S)
    assert places() == {1: ("n3",), 2: ("n2",)}


def test_all_daemons_gone_every_job_starts_by_its_expiry(bench: Bench) -> None:
    """Nobody renews and nobody takes down: each job starts, those without room as room comes."""
    bench.occupy("n3")
    jobs = [bench.submit(bench.advise(Binding.REQUIRE, "n3", lease_s=s)) for s in (8, 12)]
    assert all(bench.waits(job, for_s=1) for job in jobs)
    bench.way.die()
    assert all(bench.starts(job, within_s=14 + PROMPTLY_S) in {("n1",), ("n2",)} for job in jobs)


def test_a_controller_that_comes_back_to_a_garbage_board_starts_all_jobs(bench: Bench) -> None:
    """The controller is killed, its board is ruined, all daemons are gone: the queue moves on."""
    bench.occupy("n3")
    jobs = [bench.submit(bench.advise(Binding.REQUIRE, "n3")) for _ in range(2)]
    assert bench.waits(jobs[-1], for_s=7)  # Slurm writes its jobs down every 5 s
    bench.way.die()
    bench.cluster.kill("slurmctld")
    if isinstance(bench.way, ByWrapper):
        bench.way.path.write_bytes(b"SLIPADV1" + bytes(range(256)) * 1000)
    bench.cluster.revive()
    assert bench.when(bench.slurm.ping, 30)
    assert all(bench.starts(job, within_s=60) in {("n1",), ("n2",)} for job in jobs)


@pytest.mark.parametrize("one_bench", ["wrapper"], indirect=True)  # soft hold has no board
def test_a_board_ruined_under_a_running_controller(bench: Bench) -> None:
    """Truncated and overwritten in place: slurmctld lives on, and the jobs start."""
    assert isinstance(bench.way, ByWrapper)
    bench.occupy("n3")
    job = bench.submit(bench.advise(Binding.REQUIRE, "n3"))
    assert bench.waits(job, for_s=4)
    controller = bench.cluster.daemons()["slurmctld"]
    _truncate(bench.way.path)
    assert bench.starts(job) in {("n1",), ("n2",)}
    assert controller.alive
    assert bench.cluster.daemons()["slurmctld"] == controller


def test_a_preference_counts_for_jobs_that_backfill_starts_too(bench: Bench) -> None:
    """A large job waits at the head of the queue; the small one behind it still gets its node."""
    bench.occupy("n1")
    large = bench.submit(None, "--time=10", nodes=3)
    assert bench.waits(large, for_s=2)
    small = bench.submit(bench.advise(Binding.PREFER, "n3"), "--time=1")
    assert bench.starts(small) == ("n3",)


def _truncate(path: Path) -> None:
    with path.open("r+b") as board:
        board.truncate(5000)
        board.write(b"not a board")
