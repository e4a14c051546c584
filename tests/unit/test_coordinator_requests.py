# SPDX-License-Identifier: Apache-2.0
"""The words of the node socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.coordinator import requests
from slipstream.coordinator.requests import Answer, Request, RequestError
from slipstream.wire.control_block import Role

pytestmark = pytest.mark.unit

LINE = (
    "v=1 op=start job=12 step=batch uid=1000 node=n1 task=0 tasks=2 gpus=2 role=guest "
    "class=opportunistic token=0123456789abcdef\n"
)


def test_the_line_of_the_contract_is_understood() -> None:
    """Every word of it that matters here."""
    assert requests.parse(LINE) == Request(
        operation="start",
        job_id=12,
        step="batch",
        uid=1000,
        task=0,
        gpus=2,
        role=Role.GUEST,
        class_name="opportunistic",
        token="0123456789abcdef",  # noqa: S106 (no secret: it joins a job to its advice)
    )


def test_words_of_a_later_version_are_passed_over() -> None:
    """A newer plugin may tell more."""
    assert requests.parse(LINE.replace("\n", " colour=blue flag\n")) == requests.parse(LINE)


def test_a_task_may_tell_its_pythonpath() -> None:
    """Then the import hook's folder can be put before it."""
    told = requests.parse(LINE.replace("\n", " pythonpath=/a:/b\n"))
    assert told.python_path == "/a:/b"
    assert requests.parse(LINE).python_path is None


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("v=1", "v=2", "v='2' is not understood, only v=1"),
        ("op=start", "op=stop", "op='stop' is not understood, only start, block"),
        ("job=12", "job=0", "job='0' is not a number from 1 to 4294967295"),
        ("job=12", "job=12_3", "job='12_3' is not a number"),
        ("job=12", "job=../../etc", "is not a number"),
        ("step=batch", "step=../x", "step='../x' is not batch, interactive, extern or a number"),
        ("uid=1000", "uid=-1", "uid='-1' is not a number"),
        ("gpus=2", "gpus=17", "gpus='17' is not a number from 0 to 16"),
        ("role=guest", "role=king", "role='king' is not understood, only none, owner, guest"),
        ("class=opportunistic", "class=" + "x" * 16, "is not a word of at most 15 letters"),
        ("token=0", "token=[0", "is not a word of at most 31 letters"),
    ],
)
def test_what_is_not_understood_is_quoted(before: str, after: str, complaint: str) -> None:
    """With the right answers beside it."""
    with pytest.raises(RequestError) as refused:
        requests.parse(LINE.replace(before, after))
    assert complaint in str(refused.value)


@given(st.text(max_size=200))
def test_any_line_is_a_request_or_refused(text: str) -> None:
    """No other error can come of it."""
    try:
        requests.parse(text)
    except RequestError:
        return
    assert "v=1" in text


def test_an_answer_is_lines_and_a_closing_word() -> None:
    """In the order of their names."""
    answer = Answer({"B": "2", "A": "x=y z"}, unset=("C",))
    assert requests.render(answer) == "env A=x=y z\nenv B=2\nunset C\nok\n"


def test_an_answer_that_would_be_two_lines_is_refused() -> None:
    """A line break in a value could tell a task anything."""
    with pytest.raises(RequestError, match="cannot be told in one line"):
        requests.render(Answer({"A": "1\nenv LD_PRELOAD=x"}))


def test_how_many_gpus_are_a_tasks_own_is_read() -> None:
    """An asker of an earlier version does not say: then its task sees all."""
    told = requests.parse(LINE.replace("\n", " gpus_per_task=2 tasks_per_gpu=3\n"))
    assert (told.gpus_per_task, told.tasks_per_gpu) == (2, 3)
    assert (requests.parse(LINE).gpus_per_task, requests.parse(LINE).tasks_per_gpu) == (0, 0)
    with pytest.raises(RequestError, match="gpus_per_task='x' is not a number"):
        requests.parse(LINE.replace("\n", " gpus_per_task=x\n"))
