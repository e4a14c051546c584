# SPDX-License-Identifier: Apache-2.0
"""What cli_filter makes of srun and salloc, so that a guest's step does not ask for real GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lua.conftest import Lua

pytestmark = pytest.mark.lua

UNSET = {"ntasks": "1", "nodes": "1-0", "ntasks-per-node": "-2", "ntasks-per-gpu": "-2"}
INSIDE = {"SLURM_JOB_ID": "7", "SLURM_SLIPSTREAM": "class=opportunistic,role=guest,gpus=node:2"}


def filtered(
    lua: Lua, program: str, env: dict[str, str] | None = None, /, **options: str
) -> dict[str, Any]:
    """The client's options afterwards, with what was never set left out."""
    spank: dict[str, dict[str, str]] = {"slipstream": {"no-slip-move": "unset"}}
    if "class_" in options:
        spank["slipstream"]["slip-class"] = options.pop("class_")
    given = {name.replace("_", "-"): value for name, value in options.items()}
    told = {**UNSET, **given, "type": program, "spank": spank}
    result = lua.ask("pre_submit", options=told, env=env or {})
    for name in ("type", "spank", *(name for name in UNSET if name not in given)):
        result["options"].pop(name)
    return result


@pytest.mark.parametrize(
    ("options", "gres", "carried"),
    [
        ({"gres": "gres:gpu:2"}, "slot:2", "node:2"),
        ({"gres": "gpu:a100:1,nic:1"}, "nic:1,slot:1", "node:1"),
        ({"gpus": "2"}, "slot:2", "job:2"),
        ({"gpus": "a100:1,v100:2"}, "slot:3", "job:3"),
        ({"gpus": "3", "nodes": "2-2"}, "slot:2", "job:3"),
        ({"gpus_per_node": "a100:2", "nodes": "2"}, "slot:2", "node:2"),
        ({"gpus_per_task": "1", "ntasks": "4"}, "slot:4", "task:1"),
        ({"gpus_per_task": "2", "ntasks": "4", "nodes": "2"}, "slot:4", "task:2"),
        ({"gpus_per_task": "1", "ntasks_per_node": "3", "nodes": "2"}, "slot:3", "task:1"),
        ({"gpus_per_socket": "1", "sockets_per_node": "2"}, "slot:2", "socket:1"),
    ],
)
@pytest.mark.parametrize("program", ["srun", "salloc"])
def test_a_guest_asks_for_seats(
    lua: Lua, program: str, options: dict[str, str], gres: str, carried: str
) -> None:
    """No wish for a GPU is left in the client, and the tasks learn how many were meant."""
    result = filtered(lua, program, **options, class_="opportunistic")
    assert result["rc"] == 0
    assert result["options"]["gres"] == gres
    assert not [
        name for name, value in result["options"].items() if name.startswith("gpu") and value
    ]
    assert result["environment"] == {
        "SLURM_SLIPSTREAM": f"class=opportunistic,role=guest,gpus={carried},token=none"
    }


def test_a_guest_without_gpus_is_told_so(lua: Lua) -> None:
    """Else the SPANK plugin would have to assume one."""
    result = filtered(lua, "salloc", class_="opportunistic")
    assert result["options"] == {}
    assert result["environment"]["SLURM_SLIPSTREAM"].endswith("gpus=node:0,token=none")


def test_seats_asked_for_by_name_are_carried_for_any_class(lua: Lua) -> None:
    """The client's options stay as they are."""
    result = filtered(lua, "srun", gres="slot:2", class_="shared")
    assert result["options"] == {"gres": "slot:2"}
    assert result["environment"] == {
        "SLURM_SLIPSTREAM": "class=shared,role=guest,gpus=node:2,token=none"
    }


def test_the_twin_makes_a_guest_too(lua: Lua) -> None:
    """The flag wins over it."""
    twin = {"SLIPSTREAM_CLASS": "opportunistic"}
    assert filtered(lua, "srun", twin, gpus="1")["options"]["gres"] == "slot:1"
    assert filtered(lua, "srun", twin, gpus="1", class_="auto")["options"] == {"gpus": "1"}


@pytest.mark.parametrize(
    ("program", "class_"),
    [("sbatch", "opportunistic"), ("srun", "shared"), ("salloc", "auto"), ("srun", "bogus")],
)
def test_everybody_else_is_left_alone(lua: Lua, program: str, class_: str) -> None:
    """Sbatch is job_submit's, owners ask for GPUs, and a bad class is SPANK's to refuse."""
    result = filtered(lua, program, gpus="2", cpus_per_gpu="4", class_=class_)
    assert result["rc"] == 0
    assert result["options"] == {"gpus": "2", "cpus-per-gpu": "4"}
    assert result["environment"] == {}


def test_a_step_of_a_guest_needs_no_gpus(lua: Lua) -> None:
    """Srun --gpus-per-task=1 in a guest's script runs; other resources stay."""
    result = filtered(lua, "srun", INSIDE, gpus_per_task="1", gres="gres:gpu:1,gres:nic:1")
    assert result["options"] == {"gpus-per-task": "", "gres": "nic:1"}
    assert filtered(lua, "srun", INSIDE, gres="gpu:2")["options"] == {"gres": "none"}


def test_a_step_of_a_guest_carries_how_many_gpus_each_task_sees(lua: Lua) -> None:
    """The rest of the job's carrier stays; a step that asks in another way changes nothing."""
    job = "class=opportunistic,role=guest,gpus=job:4,token=ab,tasks_per_gpu=2,share=no"
    inside = {**INSIDE, "SLURM_SLIPSTREAM": job}
    told = filtered(lua, "srun", inside, gpus_per_task="a100:2")["environment"]
    carried = "class=opportunistic,role=guest,gpus=task:2,token=ab,share=no"
    assert told == {"SLURM_SLIPSTREAM": carried}
    assert filtered(lua, "srun", inside, gres="gpu:2")["environment"] == {}


def test_a_step_of_an_owner_keeps_its_gpus(lua: Lua) -> None:
    """Whatever class its options say."""
    owner = {"SLURM_JOB_ID": "7", "SLURM_SLIPSTREAM": "class=auto,role=owner"}
    assert filtered(lua, "srun", owner, gpus="1", class_="auto")["options"] == {"gpus": "1"}


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"cpus_per_gpu": "2"}, "--cpus-per-task"),
        ({"mem_per_gpu": "200M"}, "--mem"),
        ({"ntasks_per_gpu": "2"}, "--ntasks"),
    ],
)
def test_what_cannot_be_taken_back_is_refused_with_a_way_out(
    lua: Lua, options: dict[str, str], instead: str
) -> None:
    """A guest's client with an amount per GPU: one sentence, nothing submitted."""
    result = filtered(lua, "srun", gpus="1", **options, class_="opportunistic")
    assert result["rc"] == -1
    assert f"say {instead} instead, or use sbatch" in "".join(result["stderr"])
