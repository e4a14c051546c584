# SPDX-License-Identifier: Apache-2.0
"""A job's life: the same assertions for the fake and for real clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.bench import STUBBORN
from contract.verbs import HOSTILE, ONE_GPU, failure, look, running, submit, until
from slipstream.core.topology import Group
from slipstream.slurm_plugin import Gres, JobState, JobUpdate, Kind
from slipstream.slurm_plugin.gres import total
from slipstream.slurm_plugin.snapshot import gres_in_use

if TYPE_CHECKING:
    from contract.bench import Bench

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]


def test_slurm_answers(bench: Bench) -> None:
    """There is a controller, and a version we know."""
    assert bench.slurm.ping()
    assert bench.slurm.version() >= (22, 5)


def test_a_partitions_longest_time(bench: Bench) -> None:
    """The sandbox's has no limit; of one that is not there nothing is made up."""
    assert bench.slurm.longest_s("batch") is None


def test_topology_is_the_shapes(bench: Bench) -> None:
    """Every rack with its nodes, and one domain above them."""
    topology = bench.slurm.topology()
    assert {rack.name: rack.nodes for rack in topology.racks} == bench.shape.rack_nodes
    assert topology.domains == (Group("domain", 1, bench.shape.node_names),)


def test_idle_nodes_show_what_they_have(bench: Bench) -> None:
    """GPUs, slots and CPUs, none of them in use."""
    nodes = bench.slurm.nodes()
    assert tuple(node.name for node in nodes) == bench.shape.node_names
    for node in nodes:
        assert node.takes_jobs
        assert total(node.gres, "gpu") == bench.shape.gpus_per_node
        assert total(node.gres, "slot") == bench.shape.slots_per_node
        assert total(node.gres_used, "gpu") == 0
        assert (node.cpus, node.cpus_used) == (bench.shape.cpus_per_node, 0)


def test_a_submitted_job_waits_then_runs(bench: Bench) -> None:
    """It shows what it asked for, then the node and the very GPUs it was given."""
    job_id = submit(
        bench, name=HOSTILE, comment=HOSTILE, gres_per_node=ONE_GPU, required_nodes=("n2",)
    )
    waiting = look(bench, job_id)
    assert waiting.state in (JobState.PENDING, JobState.RUNNING)
    job = until(bench, job_id, JobState.RUNNING)
    assert (job.ref, job.name, job.comment) == (job_id, HOSTILE, HOSTILE)
    assert (job.user, job.uid, job.batch, job.restarts) == ("root", 0, True, 0)
    assert job.nodes == job.required_nodes == ("n2",)
    assert job.asked.per_node == ONE_GPU
    assert [(share.node, share.gres) for share in job.holds] == [
        ("n2", (Gres("gpu", "", 1, (0,)),))
    ]
    assert job.times.started_at_s is not None
    assert job.times.started_at_s >= job.times.submitted_at_s > 0


def test_jobs_on_one_node_hold_different_gpus(bench: Bench) -> None:
    """The node counts them, the jobs say which; slots have no number."""
    here = ("n1",)
    running(bench, gres_per_node=ONE_GPU, required_nodes=here)
    running(bench, gres_per_node=ONE_GPU, required_nodes=here)
    guest = running(bench, gres_per_node=(Gres("slot", count=2),), required_nodes=here)
    assert guest.holds[0].gres == (Gres("slot", count=2),)
    assert gres_in_use(bench.slurm.jobs()) == {"n1": {"gpu": (0, 1), "slot": ()}}
    used = bench.slurm.nodes()[0].gres_used
    assert (total(used, "gpu"), total(used, "slot")) == (2, 2)


def test_gpus_of_a_whole_job_are_spread_over_its_nodes(bench: Bench) -> None:
    """--gpus is asked per job and held node by node."""
    job = running(bench, gpus=Gres("gpu", count=3), nodes=2)
    assert job.asked.per_job == (Gres("gpu", count=3),)
    assert len(job.nodes) == len(job.holds) == 2
    assert tuple(share.node for share in job.holds) == job.nodes
    assert sorted(total(share.gres, "gpu") for share in job.holds) == [1, 2]


def test_a_completing_job_still_holds_its_node(bench: Bench) -> None:
    """Until its last process is gone, whatever state is behind; then it has ended."""
    job = running(bench, script=STUBBORN)
    bench.slurm.cancel(job.ref)
    completing = look(bench, job.ref)
    assert completing.completing
    assert [share.node for share in completing.holds] == list(job.nodes)
    assert until(bench, job.ref, JobState.CANCELLED).holds == ()


def test_a_cancelled_job_ends(bench: Bench) -> None:
    """Running or waiting; cancelling it once more is no error."""
    job = running(bench)
    bench.slurm.cancel(job.ref)
    until(bench, job.ref, JobState.CANCELLED)
    bench.slurm.cancel(job.ref)
    held = submit(bench, held=True)
    bench.slurm.cancel(held)
    assert look(bench, held).state is JobState.CANCELLED
    assert look(bench, held).holds == ()


def test_a_held_job_starts_when_it_is_released(bench: Bench) -> None:
    """Held at submission or later; released it runs."""
    job_id = submit(bench, held=True)
    bench.wait(2.0)
    assert look(bench, job_id).held
    bench.slurm.release(job_id)
    until(bench, job_id, JobState.RUNNING)
    later = submit(bench, start_at_s=2_000_000_000)
    assert not look(bench, later).held
    bench.slurm.hold(later)
    assert look(bench, later).held
    bench.slurm.release(later)
    assert not look(bench, later).held


def test_a_suspended_job_keeps_its_gpus(bench: Bench) -> None:
    """Its clock stops, its priority is 0, and it goes on where it was."""
    job = running(bench, gres_per_node=ONE_GPU)
    bench.slurm.suspend(job.ref)
    suspended = until(bench, job.ref, JobState.SUSPENDED)
    assert (suspended.priority, suspended.held) == (0, False)
    assert suspended.holds == job.holds
    assert suspended.times.changed_at_s is not None
    bench.slurm.suspend(job.ref)  # once more is no error
    bench.slurm.resume(job.ref)
    resumed = until(bench, job.ref, JobState.RUNNING)
    assert resumed.priority > 0
    assert failure(lambda: bench.slurm.resume(job.ref)).kind is Kind.WRONG_STATE


def test_a_requeued_job_runs_on_another_node(bench: Bench) -> None:
    """Requeue, change the node and start at once: seconds later it runs there."""
    job = running(bench, gres_per_node=ONE_GPU, required_nodes=("n1",))
    bench.slurm.requeue(job.ref)
    until(bench, job.ref, JobState.PENDING)
    bench.slurm.update(job.ref, JobUpdate(start_at_s="now", required_nodes=("n2",)))
    moved = until(bench, job.ref, JobState.RUNNING)
    assert (moved.nodes, moved.restarts) == (("n2",), 1)
    assert moved.holds[0].gres == (Gres("gpu", "", 1, (0,)),)


def test_a_start_given_while_a_job_completes_is_forgotten(bench: Bench) -> None:
    """Why a move waits until the job completes no more: this one would wait for cred_expire."""
    job = running(bench, script=STUBBORN, required_nodes=("n1",))
    bench.slurm.requeue(job.ref)
    assert look(bench, job.ref).completing
    bench.slurm.update(job.ref, JobUpdate(start_at_s="now", required_nodes=("n2",)))
    until(bench, job.ref, JobState.PENDING)
    bench.wait(2.5)
    waiting = look(bench, job.ref)
    assert (waiting.state, waiting.reason) == (JobState.PENDING, "BeginTime")


def test_a_job_requeued_in_hold_waits_for_its_release(bench: Bench) -> None:
    """It stays in the queue, held, and has lost its GPUs."""
    job = running(bench, gres_per_node=ONE_GPU, required_nodes=("n1",))
    bench.slurm.requeue_hold(job.ref)
    held = until(bench, job.ref, JobState.PENDING)
    assert (held.held, held.restarts, held.nodes, held.holds) == (True, 1, (), ())
    bench.slurm.update(job.ref, JobUpdate(start_at_s="now", required_nodes=("n3",)))
    bench.slurm.release(job.ref)
    assert until(bench, job.ref, JobState.RUNNING).nodes == ("n3",)


def test_a_suspended_job_that_is_requeued_stays_held(bench: Bench) -> None:
    """The trap of priority 0."""
    job = running(bench)
    bench.slurm.suspend(job.ref)
    bench.slurm.requeue(job.ref)
    assert until(bench, job.ref, JobState.PENDING).held


def test_an_ended_job_that_is_requeued_lives_again(bench: Bench) -> None:
    """The trap of a requeue that comes too late."""
    job = running(bench)
    bench.slurm.cancel(job.ref)
    until(bench, job.ref, JobState.CANCELLED)
    bench.slurm.requeue(job.ref)
    assert look(bench, job.ref).state is JobState.PENDING
