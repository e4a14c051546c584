# SPDX-License-Identifier: Apache-2.0
"""Soft hold's decisions: what is due for a pending job, and how it is written into the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.slurm_plugin import Gres, Job, JobState, Node, NodeFlag, NodeState, SlurmError
from slipstream.slurm_plugin.advice import Advice, Binding
from slipstream.slurm_plugin.errors import Kind
from slipstream.slurm_plugin.node_room import Need, Room, need_of, room_of
from slipstream.slurm_plugin.records import Array, Asked, Times
from slipstream.slurm_plugin.soft_hold import (
    Bind,
    Hold,
    LetGo,
    Moment,
    SoftHold,
    Step,
    as_its_user_left_it,
    due_steps,
    update_for,
)

pytestmark = pytest.mark.unit

TOKEN = "00c0ffee00c0ffee"  # noqa: S105 (names a job, opens nothing)
NOW = Moment(now_s=1_800_000_000.0, now_boot_s=5_000.0)
LEASE_S = 30
IN_A_WHILE_S = int(NOW.now_s) + 25


def advice(*nodes: str, binding: Binding = Binding.REQUIRE, lease_s: int = 600) -> Advice:
    """Advice for the job below."""
    until_boot_s = int(NOW.now_boot_s) + lease_s
    return Advice(token=TOKEN, nodes=nodes, binding=binding, until_boot_s=until_boot_s)


def job(number: int = 1, *words: str, start_at_s: int | None = None, nodes: int = 1) -> Job:
    """A marked, pending job of one GPU and two CPUs on each node."""
    return Job(
        job_id=number,
        uid=1000,
        partition="batch",
        priority=1,
        state=JobState.PENDING,
        reason="BeginTime" if start_at_s else "Priority",
        node_count=nodes,
        task_count=nodes,
        cpus=2 * nodes,
        asked=Asked(per_node=(Gres("gpu"),)),
        times=Times(submitted_at_s=0, eligible_at_s=start_at_s),
        admin_comment=f"[slipstream {' '.join(['v=1', f'token={TOKEN}', *words])}]",
    )


def held(number: int = 1, start_at_s: int = IN_A_WHILE_S, nodes: int = 1) -> Job:
    """The same, held by us."""
    return job(number, f"hold={start_at_s}", start_at_s=start_at_s, nodes=nodes)


def bound(number: int, *nodes: str) -> Job:
    """The same, bound by us."""
    return replace(job(number, "bound=1", nodes=len(nodes)), required_nodes=nodes)


def own_nodes(*words: str, start_at_s: int | None = None) -> Job:
    """The same, with its user's own --nodelist."""
    return replace(job(1, *words, start_at_s=start_at_s), required_nodes=("n2",))


def node(name: str, gpus_used: int = 0) -> Node:
    """A node of one GPU."""
    return Node(
        name=name,
        state=NodeState.IDLE,
        gres=(Gres("gpu"),),
        gres_used=(Gres("gpu", count=gpus_used),),
        cpus=8,
        memory_mib=1000,
    )


def left(one: Job, ago_s: int) -> Job:
    """The same, requeued a while ago: to Slurm that is a new submission."""
    at_s = int(NOW.now_s) - ago_s
    return replace(one, restarts=1, times=replace(one.times, submitted_at_s=at_s))


ALL_FREE = (node("n1"), node("n2"), node("n3"))
N3_TAKEN = (node("n1"), node("n2"), node("n3", gpus_used=1))
HOLD = Hold(int(NOW.now_s) + LEASE_S)


@pytest.mark.parametrize(
    ("because", "said", "one", "nodes", "due"),
    [
        ("no room: it is held for a lease", advice("n3"), job(), N3_TAKEN, HOLD),
        ("held for long enough already", advice("n3"), held(), N3_TAKEN, None),
        ("the lease is half over", advice("n3"), held(1, int(NOW.now_s) + 14), N3_TAKEN, HOLD),
        (
            "never held beyond the advice",
            advice("n3", lease_s=9),
            job(),
            N3_TAKEN,
            Hold(int(NOW.now_s) + 9),
        ),
        ("room, and it cannot start meanwhile", advice("n3"), held(), ALL_FREE, Bind(("n3",))),
        ("room, but it may be starting: held first", advice("n3"), job(), ALL_FREE, HOLD),
        ("the hold runs out any moment", advice("n3"), held(1, int(NOW.now_s) + 1), ALL_FREE, HOLD),
        ("as many nodes as it needs", advice("n3", "n2"), held(), ALL_FREE, Bind(("n3",))),
        ("too few with room", advice("n2", "n3"), held(nodes=2), N3_TAKEN, None),
        ("bound and waiting for Slurm", advice("n3"), bound(1, "n3"), ALL_FREE, None),
        ("bound, and the node is lost", advice("n3"), bound(1, "n3"), N3_TAKEN, HOLD),
        ("bound by older advice", advice("n2"), bound(1, "n3"), ALL_FREE, HOLD),
        ("advised nowhere: held", advice(), job(), ALL_FREE, HOLD),
        ("advised nowhere, held already", advice(), held(), ALL_FREE, None),
        ("advised nowhere while bound", advice(), bound(1, "n3"), ALL_FREE, HOLD),
        ("nowhere, with nodes of its own: held", advice(), own_nodes(), ALL_FREE, HOLD),
        ("its own nodes come first", advice("n3"), own_nodes(), ALL_FREE, None),
        (
            "its own nodes come first again",
            advice("n3"),
            own_nodes(f"hold={IN_A_WHILE_S}", start_at_s=IN_A_WHILE_S),
            ALL_FREE,
            LetGo(),
        ),
        ("advised unknown nodes", advice("n9"), held(), ALL_FREE, None),
        ("expired", advice("n3", lease_s=0), held(), N3_TAKEN, LetGo()),
        ("expired while bound", advice("n3", lease_s=0), bound(1, "n3"), N3_TAKEN, LetGo()),
        ("expired and never touched", advice("n3", lease_s=0), job(), N3_TAKEN, None),
        ("nothing said", None, held(), N3_TAKEN, LetGo()),
        (
            "just moved: not where it was before that is safe",
            None,
            left(bound(1, "n3"), 10),
            N3_TAKEN,
            LetGo(int(NOW.now_s) + 170),
        ),
        ("moved a while ago", None, left(bound(1, "n3"), 180), N3_TAKEN, LetGo()),
        (
            "just moved, and its new node is lost",
            advice("n3"),
            left(bound(1, "n3"), 10),
            N3_TAKEN,
            Hold(int(NOW.now_s) + 170),
        ),
        (
            "a preference with room",
            advice("n3", binding=Binding.PREFER),
            held(),
            ALL_FREE,
            Bind(("n3",)),
        ),
        (
            "a preference without",
            advice("n3", binding=Binding.PREFER),
            held(),
            N3_TAKEN,
            LetGo(),
        ),
        (
            "a preference without, untouched",
            advice("n3", binding=Binding.PREFER),
            job(),
            N3_TAKEN,
            None,
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_what_is_due(
    because: str, said: Advice | None, one: Job, nodes: tuple[Node, ...], due: Step | None
) -> None:
    """One job, one piece of advice, one step at most."""
    steps = due_steps([said] if said else [], [one], nodes, NOW, LEASE_S)
    assert [step for _, step in steps] == ([due] if due else []), because


def test_room_is_given_away_once() -> None:
    """Two jobs for one free GPU: the first is bound, the second is kept waiting."""
    steps = due_steps([advice("n3")], [held(2), held(1)], ALL_FREE, NOW, LEASE_S)
    assert [(one.job_id, step) for one, step in steps] == [(1, Bind(("n3",)))]


def test_room_of_a_job_bound_earlier_is_taken() -> None:
    """It has not started yet, and its node is its own nevertheless."""
    steps = due_steps([advice("n3")], [held(1), bound(2, "n3")], ALL_FREE, NOW, LEASE_S)
    assert steps == []


def test_an_array_task_goes_before_its_array() -> None:
    """The task's own advice, if there is any."""
    task = replace(held(), array=Array(1, 4))
    of_task = replace(advice("n2"), task_id=4)
    steps = due_steps([advice("n3"), of_task], [task], ALL_FREE, NOW, LEASE_S)
    assert [step for _, step in steps] == [Bind(("n2",))]


def test_what_a_step_changes_is_marked_as_ours() -> None:
    """The marker tells the next daemon what it may take back; the rest of it stays."""
    comment = "site [slipstream v=1 token=00c0ffee00c0ffee{}] text"
    one = replace(job(), admin_comment=comment.format(""))
    hold = update_for(one, Hold(1234))
    assert (hold.start_at_s, hold.required_nodes) == (1234, None)
    assert hold.admin_comment == comment.format(" hold=1234")
    bind = update_for(replace(one, admin_comment=comment.format(" hold=1234")), Bind(("n1", "n2")))
    assert (bind.start_at_s, bind.required_nodes) == ("now", ("n1", "n2"))
    assert bind.admin_comment == comment.format(" bound=1")
    later = update_for(replace(one, admin_comment=comment.format(" bound=1")), LetGo(IN_A_WHILE_S))
    assert later.start_at_s == IN_A_WHILE_S
    free = update_for(replace(one, admin_comment=comment.format(" bound=1")), LetGo())
    assert (free.start_at_s, free.required_nodes) == ("now", ())
    assert free.admin_comment == comment.format("")


def test_a_users_own_nodes_are_kept_when_its_hold_is_taken_back() -> None:
    """What we never set is not emptied."""
    assert update_for(own_nodes(f"hold={IN_A_WHILE_S}"), LetGo()).required_nodes is None
    assert update_for(own_nodes(), HOLD).required_nodes is None


def test_what_we_did_to_a_job_is_not_its_users_wish() -> None:
    """Our hold is waiting for resources, our nodes are no --nodelist; its user's own stay."""
    assert as_its_user_left_it(held()).reason == "Resources"
    assert as_its_user_left_it(bound(1, "n3")).required_nodes == ()
    for theirs in (
        job(1, start_at_s=IN_A_WHILE_S),
        own_nodes(),
        replace(held(), reason="Licenses"),
    ):
        assert as_its_user_left_it(theirs) == theirs


def test_jobs_that_are_not_ours_are_not_touched() -> None:
    """A user's own start or nodes, holds, srun, plain jobs, jobs that run: no request at all."""
    strangers = [
        replace(job(1), admin_comment=""),
        replace(job(2), admin_comment="[slipstream v=2 token=00c0ffee00c0ffee]"),
        own_nodes(),
        job(4, start_at_s=IN_A_WHILE_S),
        replace(job(5), priority=0),
        replace(job(6), batch=False),
        replace(job(7), state=JobState.RUNNING),
        job(8, "x" * 480),
    ]
    nobody = SoftHold(slurm=_Nobody(None))  # type: ignore[arg-type]
    assert nobody.tick([advice("n3")], strangers, N3_TAKEN, NOW) == {}


@pytest.mark.parametrize("kind", [Kind.WRONG_STATE, Kind.UNKNOWN_JOB, Kind.ENDED, Kind.UNREACHABLE])
def test_a_job_that_has_moved_on_is_passed_over(kind: Kind) -> None:
    """It started or ended between the look and the request, or Slurm is away: no error."""
    hold = SoftHold(slurm=_Nobody(kind))  # type: ignore[arg-type]
    assert hold.tick([advice("n3")], [job()], N3_TAKEN, NOW) == {}


def test_a_real_refusal_is_raised() -> None:
    """Without the right to change jobs nothing of this works, and somebody must hear of it."""
    hold = SoftHold(slurm=_Nobody(Kind.PERMISSION))  # type: ignore[arg-type]
    with pytest.raises(SlurmError, match="permission"):
        hold.tick([advice("n3")], [job()], N3_TAKEN, NOW)


class _Nobody:
    """Refuses every update with this kind of error; without a kind it must not be asked."""

    def __init__(self, kind: Kind | None) -> None:
        self._kind = kind

    def update(self, ref: object, change: object) -> None:
        assert self._kind is not None, (ref, change)
        raise SlurmError(("scontrol", "update"), "no", self._kind)


# --- room -----------------------------------------------------------------------------------------


def test_a_job_needs_the_most_it_could_have_on_one_node() -> None:
    """Requests per job, node and task become a need per node, rounded up."""
    one = replace(
        job(nodes=2),
        cpus=7,
        task_count=3,
        memory_mib_per_cpu=100,
        asked=Asked(per_job=(Gres("gpu", count=3),), per_task=(Gres("slot", count=2),)),
    )
    assert need_of(one) == Need(cpus=4, memory_mib=400, gres=(("gpu", 2), ("slot", 4)))
    assert need_of(replace(one, memory_mib_per_node=50)).memory_mib == 50


def test_a_node_has_room_for_what_is_free_there() -> None:
    """CPUs, memory and each GRES by itself; a drained node has none."""
    room = room_of(replace(node("n1"), cpus_used=6, memory_used_mib=400))
    assert room.fits(Need(2, 600, (("gpu", 1),)))
    assert not room.fits(Need(3, 600, (("gpu", 1),)))
    assert not room.fits(Need(2, 601, (("gpu", 1),)))
    assert not room.fits(Need(2, 600, (("gpu", 2),)))
    assert not room.fits(Need(1, 1, (("slot", 1),)))
    assert not room.less(Need(1, 1, (("gpu", 1),))).fits(Need(1, 1, (("gpu", 1),)))
    assert room_of(replace(node("n1"), flags=NodeFlag.DRAIN)) == Room()
