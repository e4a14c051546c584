# SPDX-License-Identifier: Apache-2.0
"""The checker of the chaos campaign: it catches each kind of wrong, and nothing that is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.history import Copy, Line, Told, read_lines, runs, undisturbed, violations
from chaos.plan import CASES, faults

pytestmark = pytest.mark.unit

COUNT = 6
EXPECTED = {**{number: 100 + number for number in range(1, COUNT + 1)}, 0: 999}


def process(
    at: int,
    last: int,
    *,
    began_s: float = 0.0,
    pid: int = 1,
    restart: int = 0,
    gpus: str = "",
    ends: bool = False,
) -> list[Line]:
    """What one process notes: from where it goes on to the last mini-batch it does."""
    told = {"pid": pid, "restart": restart, "gpus": gpus}
    lines = [Line("start", at, EXPECTED[at] if at else 0, began_s, **told)]  # type: ignore[arg-type]
    lines += [
        Line("minibatch", one, EXPECTED[one], began_s + one - at, **told)  # type: ignore[arg-type]
        for one in range(at + 1, last + 1)
    ]
    if ends:
        lines.append(Line("end", COUNT, EXPECTED[0], began_s + last - at, **told))  # type: ignore[arg-type]
    return lines


WHOLE = process(0, COUNT, ends=True)
FIRST = process(0, 4)
SECOND = process(3, COUNT, began_s=10.0, pid=2, restart=1, ends=True)
MOVED = Told("1", [*FIRST, *SECOND], copies=[Copy(3, 3.5)])


def changed(lines: list[Line], at: int, **changes: object) -> list[Line]:
    """The same lines but for one."""
    return [*lines[:at], replace(lines[at], **changes), *lines[at + 1 :]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told",
    [
        Told("1", WHOLE),
        MOVED,
        Told("1", [*FIRST, *process(0, COUNT, began_s=10.0, pid=2, restart=1, ends=True)]),
        Told("1", FIRST, state="FAILED", killed_at_s=4.0),
        Told("1", [], state="FAILED", killed_at_s=4.0),
        replace(MOVED, killed_at_s=4.0),
        replace(MOVED, copies=[Copy(3, 3.5), Copy(4, 11.0)]),
        Told("1", WHOLE, state="RUNNING", controller_gone=[(8.0, 9.0)]),
        Told("1", FIRST, state="RUNNING", killed_at_s=4.0, controller_gone=[(8.0, 9.0)]),
        Told(
            "1",
            [*WHOLE, *process(3, COUNT, began_s=99.0, pid=2, restart=1, ends=True)],
            controller_gone=[(8.0, 9.0)],
        ),
    ],
    ids=[
        "undisturbed",
        "moved",
        "begun anew",
        "killed",
        "killed early",
        "killed, moved",
        "later",
        "end forgotten",
        "death forgotten",
        "run again",
    ],
)
def test_what_may_happen_is_no_violation(told: Told) -> None:
    """Mini-batches done twice with the same result, a job that was killed and failed."""
    assert violations([told], EXPECTED) == []


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        (Told("1", WHOLE, state="PENDING"), "is lost: it is PENDING"),
        (Told("1", FIRST, state="FAILED"), "is lost: it is FAILED, and nobody killed it"),
        (Told("1", FIRST, state="RUNNING", killed_at_s=4.0), "killed and is RUNNING"),
        (Told("1", FIRST), "has not come to its end"),
        (Told("1", FIRST), "completed without mini-batches 5, 6"),
        (Told("1", [*WHOLE, replace(WHOLE[-1], at_s=99.0)]), "ended 2 times"),
        (
            Told("1", WHOLE, state="RUNNING", controller_gone=[(30.0, 31.0)]),
            "is lost: it is RUNNING",
        ),
        (
            Told(
                "1",
                [
                    *WHOLE,
                    *changed(process(3, 6, began_s=99.0, pid=2, restart=1, ends=True), -1, bits=1),
                ],
                controller_gone=[(8.0, 9.0)],
            ),
            "final state is not",
        ),
        (Told("1", changed(WHOLE, 3, bits=1)), "mini-batch 3 ended in another state"),
        (Told("1", changed(WHOLE, -1, bits=1)), "final state is not that of an undisturbed run"),
        (Told("1", [*WHOLE[:3], *WHOLE[4:]]), "mini-batch 4 comes after 2"),
        (Told("1", [*WHOLE[:3], WHOLE[2], *WHOLE[3:]]), "mini-batch 2 comes after 2"),
        (Told("1", WHOLE[1:]), "begins with minibatch 1"),
        (
            Told("1", [*process(0, 2), *SECOND]),
            "goes on from mini-batch 3, which was never done",
        ),
        (
            Told("1", [*FIRST, *changed(SECOND, 0, bits=1)]),
            "goes on from mini-batch 3 in another state",
        ),
        (
            replace(MOVED, copies=[Copy(3, 3.5), Copy(4, 4.5)]),
            "goes on from mini-batch 3, though 4 was durable",
        ),
        (
            Told("1", [*FIRST, *[replace(one, at_s=one.at_s - 8.0) for one in SECOND]]),
            "was in two places",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_each_kind_of_wrong_is_caught(told: Told, complaint: str) -> None:
    """Hand-made histories, each with one thing that must not be."""
    found = violations([told], EXPECTED)
    assert any(complaint in sentence for sentence in found), found


def test_a_gpu_with_two_owners_is_caught() -> None:
    """At the same time on the same node; one after the other is as it should be."""
    one = Told("1", process(0, COUNT, gpus="0", ends=True))
    later = Told("2", process(0, COUNT, began_s=100.0, pid=2, gpus="0", ends=True))
    meanwhile = Told("3", process(0, COUNT, began_s=2.0, pid=3, gpus="0,1", ends=True))
    guest = Told("4", process(0, COUNT, began_s=2.0, pid=4, ends=True))
    assert violations([one, later, guest], EXPECTED) == []
    assert violations([one, meanwhile], EXPECTED) == [
        "GPU 0 of n1 had two owners: jobs 1 and 3",
    ]
    elsewhere = replace(meanwhile, lines=[replace(line, node="n2") for line in meanwhile.lines])
    assert violations([one, elsewhere], EXPECTED) == []


def test_a_line_that_a_kill_cut_off_is_left_out() -> None:
    """The rest is read; what to compare with comes from the same lines."""
    row = '{"what": "minibatch", "minibatch": 1, "bits": 101, "at_s": 1.0, "pid": 1, "restart": 0}'
    assert read_lines(f"{row}\n{row[:30]}") == [Line("minibatch", 1, 101, 1.0)]
    assert undisturbed(WHOLE) == EXPECTED
    assert [run.start.pid for run in runs([*SECOND, *FIRST])] == [1, 2]


def test_a_seed_is_a_plan() -> None:
    """The same one gives the same faults, another one others, and ten rounds go through all."""
    assert faults(1, 2, 7) == faults(1, 2, 7)
    assert faults(1, 2, 7) != faults(2, 2, 7)
    assert {(one.kind, one.moment) for number in range(10) for one in faults(5, number, 7)} == set(
        CASES
    )
