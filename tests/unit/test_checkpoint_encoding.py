# SPDX-License-Identifier: Apache-2.0
"""Training state as JSON and back: the same values of the same kinds, memory shared as before."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.torch_hooks.checkpoint.encoding import Decoder, Encoder, placed, storages_of
from slipstream.torch_hooks.checkpoint.errors import CheckpointError, DamagedError

pytestmark = pytest.mark.unit

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = st.integers(-5, 5) | st.text(max_size=3) | st.tuples(st.integers(0, 3))
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


def there_and_back(value: object) -> Any:  # noqa: ANN401 (whatever was given)
    """Through real JSON."""
    encoder = Encoder()
    coded = json.loads(json.dumps(encoder.encode(value, "value")))
    assert storages_of(coded) == set(range(len(encoder.storages)))
    return Decoder(lambda one: placed(one, encoder.storages[one["storage"]])).decode(coded)


def same(one: object, other: object) -> bool:
    """Equal and of the same kinds, not-a-number included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(same(*pair) for pair in pairs)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex() or (math.isnan(one) and math.isnan(other))
    return one == other


@given(VALUES)
def test_values_come_back_as_they_were(value: object) -> None:
    """Numbers to the bit, tuples as tuples, keys of any kind."""
    assert same(there_and_back(value), value)


def test_counters_stay_counters() -> None:
    """A scheduler's milestones are one, and it uses what only a Counter has."""
    back = there_and_back(Counter({3: 1, 7: 2}))
    assert list(back.elements()) == [3, 7, 7]


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64],
)
def test_tensors_come_back_to_the_bit(dtype: torch.dtype) -> None:
    """With their strides and offsets, whatever they hold."""
    base = (torch.randn(6, 8) * 3).to(dtype)
    for tensor in (base, base.t(), base[1:4, ::2], base[0, 0], base[:0]):
        back = there_and_back(tensor)
        assert (back.dtype, back.shape, back.stride()) == (dtype, tensor.shape, tensor.stride())
        assert torch.equal(back, tensor)


def test_shared_memory_is_saved_once_and_shared_again() -> None:
    """Two views of one storage stay views of one storage."""
    base = torch.arange(10.0)
    encoder = Encoder()
    encoder.encode({"whole": base, "part": base[3:5], "other": torch.ones(2)}, "state")
    assert len(encoder.storages) == 2
    back = there_and_back([base, base[3:5]])
    back[1].fill_(-1)
    assert back[0][3:5].tolist() == [-1, -1]


def test_empty_tensors_share_nothing() -> None:
    """They all have the address 0."""
    encoder = Encoder()
    encoder.encode([torch.empty(0), torch.empty(0)], "state")
    assert len(encoder.storages) == 2


def test_numpys_values_come_back() -> None:
    """Its random state is made of them."""
    name, keys, *rest = (
        np.random.default_rng(1).bit_generator.state["state"],
        np.arange(5, dtype=np.uint32),
        7,
    )
    back = there_and_back(("MT19937", keys, *rest, np.float32(1.5), {"state": name}))
    assert back[0] == "MT19937"
    assert back[1].dtype == np.uint32
    assert back[1].tolist() == [0, 1, 2, 3, 4]
    assert (type(back[3]), back[3]) == (np.float32, 1.5)
    back[1][0] = 9  # it can be written


def test_kinds_of_torchs_own_come_back() -> None:
    """A dtype and a device are values, too."""
    assert there_and_back([torch.float16, torch.device("cpu")]) == [
        torch.float16,
        torch.device("cpu"),
    ]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [1, object()]}, r"value\.a\[1\] is a object, which cannot be saved"),
        ({"f": max}, r"value\.f is a builtin_function_or_method"),
        ([{1, 2}], r"value\[0\] is a set"),
        (np.array([object()]), "value is an array of objects, which needs pickle"),
        (torch.eye(2).to_sparse(), "tensors of layout torch.sparse_coo cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_named(value: object, complaint: str) -> None:
    """With the place where it was found."""
    with pytest.raises(CheckpointError, match=complaint):
        Encoder().encode(value, "value")


def test_an_unknown_kind_is_no_value() -> None:
    """An index of a later version, or a damaged one."""
    with pytest.raises(DamagedError, match="unknown kind 'pickle'"):
        Decoder(lambda _: torch.empty(0)).decode([{"pickle": "gASVAAAA"}])
