# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is and where the ranks meet, as torchrun or Slurm's srun says."""

import fcntl
import re
import socket
import struct
import subprocess
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

TORCHRUN: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# A batch script has SLURM_PROCID and SLURM_NTASKS too, but only a step of srun has these.
SRUN: Final = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID")
LOOPBACK: Final = "127.0.0.1"
SIOCGIFADDR: Final = 0x8915  # Linux: the IPv4 address of an interface
PORTS: Final = range(20000, 28000)  # below those of sandboxes, and of outgoing connections


class RanksError(Exception):
    """Which rank this is cannot be told; says how to start it so that it can."""


@dataclass(frozen=True)
class Place:
    """One process among the ranks of a training, and where rank 0 listens."""

    rank: int
    local_rank: int
    ranks: int
    address: str
    port: int


def place(environ: Mapping[str, str], first_node_address: Callable[[str], str]) -> Place:
    """Read this process's place; torchrun inside a Slurm job wins.

    Args:
        environ: the environment of the process.
        first_node_address: gives the address of the first node of a Slurm node list.
    """
    if all(name in environ for name in TORCHRUN):
        return _torchrun_place(environ)
    if all(name in environ for name in SRUN):
        return _srun_place(environ, first_node_address)
    raise RanksError(
        "neither torchrun nor srun started this process: use"
        " `torchrun --standalone --nproc-per-node 2 ddp.py …` or `srun --ntasks 2 python ddp.py …`"
    )


def ask_slurm_for_address(nodelist: str) -> str:
    """Ask Slurm under which address it reaches the first node of a node list."""
    first = _scontrol("show", "hostnames", nodelist).split()[0]
    return parse_node_address(_scontrol("--oneliner", "show", "node", first))


def parse_node_address(shown: str) -> str:
    """Find the address in what `scontrol --oneliner show node` prints."""
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    if found is None:
        raise RanksError(f"no NodeAddr in the answer of scontrol: {shown!r}")
    return found[1]


def interface_towards(address: str) -> str | None:
    """Find the network interface on the way to an address, if IPv4 leads there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, PORTS[0]))  # of UDP: chooses the way and sends nothing
        except OSError:
            return None
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            if _address_of(name, probe) == own:
                return name
    return None


def _address_of(interface: str, any_socket: socket.socket) -> bytes:
    try:
        answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", interface.encode()))
    except OSError:  # it has no IPv4 address
        return b""
    return answer[20:24]


def _torchrun_place(environ: Mapping[str, str]) -> Place:
    return Place(
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
        ranks=int(environ["WORLD_SIZE"]),
        address=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
    )


def _srun_place(environ: Mapping[str, str], first_node_address: Callable[[str], str]) -> Place:
    address = environ.get("MASTER_ADDR")
    if address is None:
        alone = environ.get("SLURM_STEP_NUM_NODES") == "1"
        address = LOOPBACK if alone else first_node_address(environ["SLURM_STEP_NODELIST"])
    # Jobs that share a node must not meet at one port; neither must those of two test clusters.
    step = 16 * int(environ.get("SLURM_JOB_ID", "0")) + int(environ.get("SLURM_STEP_ID", "0"))
    step += zlib.crc32(environ.get("SLURM_CLUSTER_NAME", "").encode())
    return Place(
        rank=int(environ["SLURM_PROCID"]),
        local_rank=int(environ["SLURM_LOCALID"]),
        ranks=int(environ["SLURM_STEP_NUM_TASKS"]),
        address=address,
        port=int(environ.get("MASTER_PORT") or PORTS[step % len(PORTS)]),
    )


def _scontrol(*arguments: str) -> str:
    answer = subprocess.run(
        ["scontrol", *arguments], check=False, capture_output=True, text=True, timeout=30
    )
    if answer.returncode != 0:
        raise RanksError(f"scontrol {' '.join(arguments)} failed: {answer.stderr.strip()}")
    return answer.stdout
