# SPDX-License-Identifier: Apache-2.0
"""MUNGE by libmunge, against real daemons: who can read what, and how often."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from munge_rig import sealed_as
from slipstream.slurm_plugin import site
from slipstream.slurm_plugin.munge import MOST_CREDENTIAL_BYTES, Munge, MungeError, Opened

if TYPE_CHECKING:
    from pathlib import Path

    from munge_rig import Hosts

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(os.geteuid() != 0, reason="skipped: speaks as other users, needs root"),
]

NOBODY = 65_534


def test_what_is_sealed_on_one_host_is_opened_on_another(realms: Hosts) -> None:
    """With the bytes as they were, whatever they are, and the user who sealed them."""
    one, other = realms.head, realms.node
    payload = bytes(range(256))
    assert other.open(one.seal(payload, 0)) == Opened(0, payload)
    assert other.open(one.seal(b"", 0)) == Opened(0, b"")
    assert other.open(sealed_as(NOBODY, one, b"x")) == Opened(NOBODY, b"x")


def test_a_credential_is_read_once_and_by_its_user_only(realms: Hosts) -> None:
    """A second time it is a replay, which is known as such."""
    one, other = realms.head, realms.node
    credential = one.seal(b"x", 0)
    other.open(credential)
    with pytest.raises(MungeError, match=r"[Rr]eplay") as caught:
        other.open(credential)
    assert caught.value.replayed
    with pytest.raises(MungeError, match=r"[Uu]nauthorized"):
        other.open(one.seal(b"x", NOBODY))


@pytest.mark.parametrize(
    "garbage", [b"", b"MUNGE:", b"MUNGE:AwQ=:", b"x" * MOST_CREDENTIAL_BYTES, b"a\0b", b"x" * 5000]
)
def test_what_is_no_credential_is_an_error(realms: Hosts, garbage: bytes) -> None:
    """Of any form and length."""
    with pytest.raises(MungeError) as caught:
        realms.head.open(garbage)
    assert not caught.value.replayed


def test_without_munged_it_says_so(tmp_path: Path) -> None:
    """Nobody listens at that socket."""
    with pytest.raises(MungeError, match=str(tmp_path)):
        Munge(f"{tmp_path}/s").seal(b"x", 0)


def test_slurm_conf_says_who_the_cluster_is(tmp_path: Path) -> None:
    """In any case of letters, comments left out; what cannot be read says nothing."""
    text = "#ClusterName=old\nclustername = deep # the new one\nAuthInfo=ttl=60,socket=/m.s\n"
    text += "SlurmUser=slurm\nPrivateData=usage,Jobs\nNodeName=n1 CPUs=2\n"
    (tmp_path / "slurm.conf").write_text(text)
    found = site.read({"SLURM_CONF": f"{tmp_path}/slurm.conf"})
    assert found == site.Site(cluster="deep", slurm_user="slurm", munge_socket="/m.s", private=True)
    assert site.read({"SLURM_CONF": f"{tmp_path}/none"}) == site.Site()
