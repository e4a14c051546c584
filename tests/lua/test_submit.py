# SPDX-License-Identifier: Apache-2.0
"""What job_submit makes of a job: class, role, seats, memory, marker; and what it leaves alone."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from lua.answering import Answering

if TYPE_CHECKING:
    from lua.conftest import Lua

pytestmark = pytest.mark.lua

GUEST = "SLIPSTREAM_CLASS=opportunistic"
BATCH: dict[str, object] = {"script": "#!/bin/sh\ntrue\n"}
MARKER = re.compile(r"\[slipstream v=1 token=([0-9a-f]{16}) ([^\]]*)\]")


def marker(result: dict[str, Any]) -> str:
    """What the marker says after the token."""
    found = MARKER.search(result["job"]["admin_comment"])
    assert found
    return found[2]


def changed(result: dict[str, Any], job: dict[str, object]) -> dict[str, object]:
    """The fields that are not as they were; None for those that are gone."""
    after = result["job"]
    return {
        name: after.get(name)
        for name in sorted({*job, *after} - {"admin_comment"})
        if job.get(name) != after.get(name)
    }


@pytest.mark.parametrize("job", [{}, BATCH, {"tres_per_node": "gres:gpu:2", **BATCH}])
def test_a_job_without_a_flag_is_not_touched(lua: Lua, job: dict[str, object]) -> None:
    """Neither a field nor a word of it changes."""
    result = lua.submit(job, "SPANK_OF_OTHERS=1")
    assert result["rc"] == 0
    assert result["job"] == job
    assert result["environment"] == {}
    assert not any(result["said"].values())


@pytest.mark.parametrize("class_", ["guaranteed", "shared", "auto"])
def test_an_owner_keeps_its_gpus(lua: Lua, class_: str) -> None:
    """Without a daemon's word three classes are owners: they get a marker and nothing else."""
    job = {"tres_per_node": "gres:gpu:a100:2", "shared": 0, **BATCH}
    result = lua.submit(job, f"SLIPSTREAM_CLASS={class_}")
    assert changed(result, job) == {}
    assert marker(result) == f"class={class_} role=owner gpus=node:2 weight=1"


@pytest.mark.parametrize(
    ("more", "may"),
    [
        (BATCH, True),
        ({}, False),
        ({"shared": 0, **BATCH}, False),
        ({"cpus_per_tres": "gres:gpu:4", **BATCH}, False),
        ({"mem_per_tres": "gres:gpu:1000", **BATCH}, False),
    ],
)
def test_auto_may_be_a_guest_later_if_only_its_gpus_change(
    lua: Lua, more: dict[str, object], *, may: bool
) -> None:
    """Not an srun, whose step asks for itself, nor one whose CPUs or memory are counted by GPUs."""
    result = lua.submit({"tres_per_node": "gres:gpu:2", **more}, "SLIPSTREAM_CLASS=auto")
    assert (" guest=may" in marker(result)) is may


@pytest.mark.parametrize("nodes", [1, 2])
def test_auto_without_gres_has_one_gpu_where_nobody_answers(lua: Lua, nodes: int) -> None:
    """Of each node, beside what else it asks for; the user is told."""
    job = {"tres_per_node": "gres:nic:1", "min_nodes": nodes, **BATCH}
    result = lua.submit(job, "SLIPSTREAM_CLASS=auto")
    assert changed(result, job) == {"tres_per_node": "gres:nic:1,gres:gpu:1"}
    assert marker(result) == "class=auto role=owner gpus=node:1 weight=1 guest=may"
    assert "gpus=node:1" in result["environment"]["SLURM_SLIPSTREAM"]
    of_each = " of each node" if nodes > 1 else ""
    assert result["said"]["user"] == [f"[slipstream] 1 GPU{of_each}: no --gres asked for any"]


def test_auto_without_gres_has_the_gpus_that_were_estimated(lua: Lua) -> None:
    """The daemon is told that none were asked for, and its number is taken."""
    answer = b'{"v":1,"gpus":4,"message":"estimated"}\n'
    with Answering(lua.socket_path, lambda _line: answer) as daemon:
        result = lua.submit(BATCH, "SLIPSTREAM_CLASS=auto")
    (line,) = daemon.asked
    assert json.loads(line)["gpus"] == {"per": "node", "count": 0}
    assert changed(result, BATCH) == {"tres_per_node": "gres:gpu:4"}
    assert marker(result) == "class=auto role=owner gpus=node:4 weight=1 guest=may"
    assert result["said"]["user"] == [
        "[slipstream] 4 GPUs: no --gres asked for any",
        "[slipstream] estimated",
    ]


@pytest.mark.parametrize(
    "asked",
    [
        {"tres_per_node": "gres:gpu:2", **BATCH},
        {"tres_per_job": "gres:gpu:1", **BATCH},
        {"tres_per_node": "gres:gpu:0", **BATCH},
        {"ntasks_per_tres": 1, **BATCH},
        {"num_tasks": 1},
    ],
)
def test_an_explicit_request_always_wins(lua: Lua, asked: dict[str, object]) -> None:
    """Also one for no GPU; and an srun, whose step asks for itself, is left as it is."""
    with Answering(lua.socket_path, lambda _line: b'{"v":1,"gpus":4}\n'):
        result = lua.submit(asked, "SLIPSTREAM_CLASS=auto")
    assert changed(result, asked) == {}


@pytest.mark.parametrize(
    ("asked", "swapped", "gpus"),
    [
        ({"tres_per_node": "gres:gpu:2"}, {"tres_per_node": "gres:slot:2"}, "node:2"),
        ({"tres_per_node": "gres:gpu"}, {"tres_per_node": "gres:slot:1"}, "node:1"),
        ({"tres_per_node": "gres:gpu:a100"}, {"tres_per_node": "gres:slot:1"}, "node:1"),
        (
            {"tres_per_node": "gres:gpu:a100:1,gres:nic:1,gres:gpu:v100:2"},
            {"tres_per_node": "gres:nic:1,gres:slot:3"},
            "node:3",
        ),
        ({"tres_per_job": "gres:gpu:4"}, {"tres_per_job": "gres:slot:4"}, "job:4"),
        ({"tres_per_task": "gres:gpu:1"}, {"tres_per_task": "gres:slot:1"}, "task:1"),
        ({"tres_per_socket": "gres:gpu:1"}, {"tres_per_socket": "gres:slot:1"}, "socket:1"),
        ({"tres_per_node": "gres/gpu:2"}, {"tres_per_node": "gres/slot:2"}, "node:2"),
        (
            {"tres_per_task": "cpu=2,gres/gpu:a100=1"},
            {"tres_per_task": "cpu=2,gres/slot=1"},
            "task:1",
        ),
        (
            {"tres_per_node": "gres:gpu:2", "tres_per_job": "gres:gpu:4"},
            {"tres_per_node": "gres:slot:2", "tres_per_job": "gres:slot:4"},
            "node:2",
        ),
        ({"ntasks_per_tres": 2, "num_tasks": 4}, {"tres_per_job": "gres:slot:2"}, "job:2"),
        ({"tres_per_node": "gres:slot:3"}, {}, "node:3"),
        ({}, {}, "node:0"),
    ],
)
def test_every_request_form_of_a_guest_becomes_slots(
    lua: Lua, asked: dict[str, object], swapped: dict[str, object], gpus: str
) -> None:
    """In the spelling of the Slurm that sent it, whatever the type of GPU."""
    result = lua.submit({**asked, **BATCH}, GUEST)
    job = result["job"]
    assert marker(result).split()[2] == f"gpus={gpus}"
    assert {name: job[name] for name in swapped} == swapped
    assert not [name for name, value in job.items() if "gpu" in str(value) and name[:4] == "tres"]


@pytest.mark.parametrize("prefix", ["gres:", "gres/"])
def test_what_no_user_has_spelt_is_spelt_by_slurm(lua: Lua, prefix: str) -> None:
    """22.05 and 24.11 each refuse the other's spelling, and with it the job."""
    job = {"ntasks_per_tres": 2, "num_tasks": 4, **BATCH}
    guest = lua.submit(job, GUEST, prefix=prefix)["job"]
    assert guest["tres_per_job"] == f"{prefix}slot:2"
    assert "tres_per_node" not in guest
    job = {"tres_per_node": f"{prefix}nic:1", **BATCH}
    owner = lua.submit(job, "SLIPSTREAM_CLASS=auto", prefix=prefix)["job"]
    assert owner["tres_per_node"] == f"{prefix}nic:1,{prefix}gpu:1"


def test_how_many_tasks_share_a_gpu_is_carried_to_the_node(lua: Lua) -> None:
    """Slurm would bind an owner's tasks by it; of a guest's it knows nothing."""
    job = {"ntasks_per_tres": 2, "num_tasks": 4, **BATCH}
    carrier = lua.submit(job, GUEST)["environment"]["SLURM_SLIPSTREAM"]
    assert ",gpus=job:2," in carrier
    assert ",tasks_per_gpu=2" in carrier
    one = {"tres_per_node": "gres:gpu:1", **BATCH}
    assert "tasks_per_gpu" not in lua.submit(one, GUEST)["environment"]["SLURM_SLIPSTREAM"]


def test_seats_asked_for_by_name_make_a_guest_of_any_class(lua: Lua) -> None:
    """A guest is who holds seats and no GPU."""
    seats = lua.submit({"tres_per_node": "gres:slot:2", **BATCH}, "SLIPSTREAM_CLASS=shared")
    assert marker(seats).startswith("class=shared role=guest gpus=node:2")
    both = {"tres_per_node": "gres:slot:2,gres:gpu:1", **BATCH}
    assert marker(lua.submit(both, "SLIPSTREAM_CLASS=shared")).startswith("class=shared role=owner")


def test_what_would_leak_a_gpu_is_reset(lua: Lua) -> None:
    """--exclusive, --ntasks-per-gpu, --gpu-bind and --gpu-freq; the user is told of the first."""
    asked = {"shared": 0, "ntasks_per_tres": 2, "tres_bind": "gpu:closest", "tres_freq": "gpu:low"}
    result = lua.submit({"tres_per_job": "gres:gpu:2", **asked, **BATCH}, GUEST)
    assert not {*asked} & result["job"].keys()
    assert result["job"]["num_tasks"] == 4
    assert result["said"]["user"] == ["[slipstream] --exclusive is ignored for a guest"]


def test_oversubscribe_is_not_exclusive(lua: Lua) -> None:
    """A guest that allows others beside it keeps saying so."""
    assert lua.submit({"shared": 1, **BATCH}, GUEST)["job"]["shared"] == 1


def test_cpus_and_memory_per_gpu_become_amounts_of_their_own(lua: Lua) -> None:
    """Two nodes, two GPUs each, four CPUs and 1 GiB a GPU: amounts a task and a node."""
    job = {"tres_per_node": "gres:gpu:2", "min_nodes": 2, "max_nodes": 2, **BATCH}
    per_gpu = {"cpus_per_tres": "gres:gpu:4", "mem_per_tres": "gres:gpu:1024"}
    after = lua.submit({**job, **per_gpu}, GUEST)["job"]
    assert not {*per_gpu} & after.keys()
    assert (after["cpus_per_task"], after["min_cpus"]) == (8, 16)
    assert after["min_mem_per_node"] == 2 * (1024 + 4096)


@pytest.mark.parametrize(
    ("asked", "after"),
    [
        ({"min_mem_per_node": 1000}, {"min_mem_per_node": 1000 + 2 * 4096}),
        ({"min_mem_per_node": 0}, {"min_mem_per_node": 0}),
        ({"min_mem_per_cpu": 100, "cpus_per_task": 4}, {"min_mem_per_cpu": 100 + 2 * 1024}),
        ({}, {}),
    ],
)
def test_a_guests_share_is_added_to_its_memory(
    lua: Lua, asked: dict[str, object], after: dict[str, object]
) -> None:
    """4096 MiB for each GPU; all of a node's stays all; an unknown default stays unknown."""
    job = lua.submit({"tres_per_node": "gres:gpu:2", **asked, **BATCH}, GUEST)["job"]
    assert {name: value for name, value in job.items() if name.startswith("min_mem")} == after


def test_a_known_default_memory_is_added_to(lua: Lua) -> None:
    """Where the site tells its DefMemPerCPU, a job without --mem gets its share, too."""
    told = {"default_memory_per_cpu_mib": 256, "guest_memory_per_gpu_mib": 100}
    lua.fresh(settings=told)
    job = lua.submit({"tres_per_job": "gres:gpu:2", "num_tasks": 4, "min_cpus": 4, **BATCH}, GUEST)
    assert job["job"]["min_mem_per_cpu"] == 256 + 50


def test_the_marker_holds_every_word_of_the_flags(lua: Lua) -> None:
    """After what the site had put there, in place of an older marker; short enough in any case."""
    before = {"admin_comment": "keep me [slipstream v=1 token=00 class=auto]", **BATCH}
    words = ("WEIGHT=16", "ELASTIC=1000-4096", "NO_SHARE=1", "NO_MOVE=1", "HINTS=" + "k=v" * 1)
    result = lua.submit(before, GUEST, *(f"SLIPSTREAM_{word}" for word in words))
    comment = result["job"]["admin_comment"]
    assert comment.startswith("keep me [slipstream v=1 ")
    assert comment.count("[slipstream") == 1
    assert len(comment) <= 512
    assert marker(result) == (
        "class=opportunistic role=guest gpus=node:0 weight=16 elastic=1000-4096 share=no move=no"
    )


def test_tokens_differ(lua: Lua) -> None:
    """Each job has one of its own, also in the environment of its script."""
    results = [lua.submit(BATCH, GUEST) for _ in range(20)]
    tokens = [MARKER.search(one["job"]["admin_comment"]) for one in results]
    found = [one[1] for one in tokens if one]
    assert len(set(found)) == 20
    assert [one["environment"]["SLURM_SLIPSTREAM"] for one in results] == [
        f"class=opportunistic,role=guest,gpus=node:0,token={token}" for token in found
    ]


def test_an_owner_that_keeps_guests_away_carries_it(lua: Lua) -> None:
    """The coordinator of its node reads it there."""
    job = lua.submit(BATCH, "SLIPSTREAM_CLASS=shared", "SLIPSTREAM_NO_SHARE=1")
    carrier = job["environment"]["SLURM_SLIPSTREAM"]
    assert carrier.startswith("class=shared,role=owner,")
    assert carrier.endswith(",share=no")


def test_a_weight_is_carried(lua: Lua) -> None:
    """The coordinator counts turns by it; one of 1 goes without saying."""
    carried = [
        lua.submit(BATCH, "SLIPSTREAM_CLASS=shared", f"SLIPSTREAM_WEIGHT={weight}")["environment"]
        for weight in (4, 1)
    ]
    assert carried[0]["SLURM_SLIPSTREAM"].endswith(",weight=4")
    assert "weight" not in carried[1]["SLURM_SLIPSTREAM"]


def test_a_flag_without_a_class_makes_a_guaranteed_job(lua: Lua) -> None:
    """--slip-weight alone: ours to know of, and undisturbed."""
    assert marker(lua.submit(BATCH, "SLIPSTREAM_WEIGHT=2")).startswith(
        "class=guaranteed role=owner"
    )


@pytest.mark.parametrize(
    "job",
    [
        {"het_job_offset": 1, "tres_per_node": "gres:gpu:1"},
        {"tres_per_node": "gres:shard:2"},
        {"tres_per_node": "gres:gpu:1,gres:mps:50"},
        {"tres_per_node": "gres:gpu:a:b:c:1"},
    ],
)
def test_what_we_cannot_handle_is_left_to_slurm(lua: Lua, job: dict[str, object]) -> None:
    """Not a field changes, and the log says why."""
    result = lua.submit({**job, **BATCH}, GUEST)
    assert result["rc"] == 0
    assert result["job"] == {**job, **BATCH}
    assert result["environment"] == {}
    assert "left to Slurm" in result["said"]["info"][0]


@pytest.mark.parametrize("broken", ["tres_per_node", "shared", "admin_comment", "min_mem_per_node"])
def test_a_change_that_fails_leaves_the_job_as_it_came(lua: Lua, broken: str) -> None:
    """None is half a guest: what was changed is changed back, and the job goes on."""
    job = {"tres_per_node": "gres:gpu:2", "shared": 0, "min_mem_per_node": 10, **BATCH}
    result = lua.submit(job, GUEST, broken=broken)
    assert result["rc"] == 0
    assert result["job"] == job
    assert "bad field" in result["said"]["error"][0]


def test_a_bad_twin_is_refused_with_the_good_answers(lua: Lua) -> None:
    """Only bad user input is refused, in one sentence."""
    result = lua.submit(BATCH, "SLIPSTREAM_CLASS=best")
    assert result["rc"] == -1
    assert result["job"] == BATCH
    (sentence,) = result["said"]["user"]
    assert sentence == (
        "[slipstream] SLIPSTREAM_CLASS=best is not a class: "
        "choose guaranteed, shared, opportunistic or auto"
    )


def test_the_sites_own_rules_come_first(lua: Lua) -> None:
    """What the site refuses is refused with its code, and we do not touch it."""
    result = lua.submit(BATCH, GUEST, site_refuses=True)
    assert result["rc"] == 2
    assert result["job"] == BATCH


def test_a_site_can_set_classes_for_jobs_without_flags(lua: Lua) -> None:
    """By partition, then by default; a guest only where no client is needed."""
    of_partition = {"debug": "opportunistic"}
    lua.fresh(settings={"default_class": "shared", "class_of_partition": of_partition})
    assert marker(lua.submit(BATCH)).startswith("class=shared role=owner")
    assert marker(lua.submit({"partition": "debug", **BATCH})).startswith("class=opportunistic")
    assert lua.submit({"partition": "debug"})["job"] == {"partition": "debug"}


def test_an_unknown_setting_is_named_and_changes_nothing(lua: Lua) -> None:
    """The log lists the right ones; jobs go on."""
    said = lua.ask("fresh", settings={"guest_memory": 1, "default_class": 3})["said"]["error"]
    assert len(said) == 2
    assert all("known: class_of_partition (table), default_class (string)" in one for one in said)
    assert lua.submit(BATCH)["job"] == BATCH


def test_the_kill_switch_ends_new_guests(lua: Lua) -> None:
    """With the file there, a flagged job is left to Slurm."""
    switch = lua.run_dir / "disable"
    switch.touch()
    lua.fresh(settings={"disable_file": str(switch)})
    job = {"tres_per_node": "gres:gpu:1", **BATCH}
    assert lua.submit(job, GUEST)["job"] == job
    switch.unlink()
    assert lua.submit(job, GUEST)["job"]["tres_per_node"] == "gres:slot:1"


def test_a_guest_cannot_ask_for_gpus_afterwards(lua: Lua) -> None:
    """Its user gets slots; root, who moves and upgrades jobs, gets what it asks for."""
    guest = "[slipstream v=1 token=0 class=opportunistic role=guest gpus=node:1]"
    asked = {"tres_per_node": "gres:gpu:1"}
    swapped = {"tres_per_node": "gres:slot:1"}
    told: dict[str, Any] = {"job": asked, "admin_comment": guest}
    assert lua.ask("modify", uid=1000, **told)["job"] == swapped
    assert lua.ask("modify", uid=0, **told)["job"] == asked
    lua.fresh(settings={"trusted_uids": [0, 64030]})
    assert lua.ask("modify", uid=64030, **told)["job"] == asked
    owner = guest.replace("guest", "owner")
    assert lua.ask("modify", uid=1000, job=asked, admin_comment=owner)["job"] == asked
