# SPDX-License-Identifier: Apache-2.0
"""GRES in all the ways Slurm writes them."""

from __future__ import annotations

import pytest

from slipstream.slurm_plugin import Gres, SlurmParseError
from slipstream.slurm_plugin.gres import parse_asked_gres, parse_gres, render_gres, total

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        pytest.param("", (), id="none"),
        pytest.param("(null)", (), id="Slurm's none"),
        pytest.param("gres:", (), id="emptied on 22.05"),
        pytest.param("gres/", (), id="emptied later"),
        pytest.param("gpu", (Gres("gpu"),), id="one without a count"),
        pytest.param("gpu:tesla", (Gres("gpu", "tesla"),), id="a type without a count"),
        pytest.param(
            "gpu:a100:4(S:0-1),slot:12",
            (Gres("gpu", "a100", 4), Gres("slot", "", 12)),
            id="a node's, with sockets",
        ),
        pytest.param(
            "gpu:a100:2(IDX:0,3),slot:6",
            (Gres("gpu", "a100", 2, (0, 3)), Gres("slot", "", 6)),
            id="in use, with commas inside",
        ),
        pytest.param("gpu:a100:0(IDX:N/A)", (Gres("gpu", "a100", 0),), id="none in use"),
        pytest.param("gpu:a100:0(IDX:)", (Gres("gpu", "a100", 0),), id="asked for no more"),
        pytest.param(
            "slot(CNT:2),gpu:1(IDX:2)",
            (Gres("slot", "", 2), Gres("gpu", "", 1, (2,))),
            id="held by a job",
        ),
        pytest.param("gres:gpu:2", (Gres("gpu", "", 2),), id="asked on 22.05"),
        pytest.param("gres/gpu:a100=2", (Gres("gpu", "a100", 2),), id="asked per task"),
        pytest.param("gpu:1g.5gb:2", (Gres("gpu", "1g.5gb", 2),), id="a MIG profile"),
        pytest.param("gpu:2080:3", (Gres("gpu", "2080", 3),), id="a type of digits"),
        pytest.param("shard:8(1/4,0/4)", (Gres("shard", "", 8),), id="shards of devices"),
        pytest.param(
            "bandwidth:lustre:no_consume:4G",
            (Gres("bandwidth", "lustre", 4 << 30),),
            id="not consumed, in units",
        ),
    ],
)
def test_gres_are_read(text: str, gres: tuple[Gres, ...]) -> None:
    """Each way of writing gives the same kind of record."""
    assert parse_gres(text) == gres


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("gpu:", "gpu:"),
        ("gpu:a:b:3", "gpu:a:b:3"),
        ("gpu:2(IDX:0-x)", "0-x"),
        ("gpu:2(FOO:1)", "FOO:1"),
        ("gpu:2(IDX:0", "gpu:2(IDX:0"),
        ("gpu 2", "gpu 2"),
        ("no_consume:", "no_consume:"),
    ],
)
def test_what_is_no_gres_is_quoted(text: str, quoted: str) -> None:
    """The part, not only the whole."""
    with pytest.raises(SlurmParseError) as raised:
        parse_gres(text)
    assert repr(quoted) in str(raised.value)


def test_other_resources_of_a_request_are_left_out() -> None:
    """From 24.11 a task's CPUs stand beside its GPUs."""
    assert parse_asked_gres("cpu=2,gres/gpu=1,license/matlab=1") == (Gres("gpu"),)
    assert parse_asked_gres("") == ()


def test_gres_are_written_as_options_take_them() -> None:
    """A type only where there is one, a count always."""
    assert render_gres([Gres("gpu", "a100", 2), Gres("slot")]) == "gpu:a100:2,slot:1"


def test_units_are_counted_over_types() -> None:
    """Whoever asks how many GPUs there are does not care for their types."""
    mixed = parse_gres("gpu:a100:4,gpu:v100:2,slot:9")
    assert (total(mixed, "gpu"), total(mixed, "slot"), total(mixed, "tpu")) == (6, 9, 0)
