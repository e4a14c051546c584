# SPDX-License-Identifier: Apache-2.0
"""Keeping a guest to its share: where its device's work begins, or at boundaries where that fails.

On the CPU operators wait in the native gate; on the occupancy GPU launches do. Without the native
gate, and on CUDA, the process pauses at boundaries by a bucket of the same kind. A gate is made at
the boundary where a share below 100 % is first read, and removed at the one where it is 100 again.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from slipstream.torch_hooks import native, which_device
from slipstream.torch_hooks.bucket import Bucket
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.torch_hooks.owner_watch import OwnerWatch
from slipstream.wire import owner_phase
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from slipstream.torch_hooks.block import Block
    from slipstream.torch_hooks.notes import Notes


class Gate(Protocol):
    """What a session needs of a gate."""

    @property
    def slept_ns(self) -> int:
        """How long this process has been held up in all."""

    def at_boundary(self, epoch: int) -> None:
        """A mini-batch has ended, and the directive of this epoch is being acted on."""

    def remove(self) -> None:
        """Hold nobody up any more."""


def install(block: Block, notes: Notes) -> Gate:
    """The best gate there is for this process, kept to the share that its page says."""
    occupancy = which_device.occupancy()
    if occupancy is None and which_device.cuda():
        return _AtBoundaries(block, _CudaClock())
    try:
        made = NativeGate(
            block.asked_share_pct(),
            down_address=block.down_address,
            at_operators=occupancy is None,
        )
    except native.NativeError as error:
        notes.problem("no native gate", f"{error}; it pauses at boundaries instead")
        return _AtLaunches(block, occupancy) if occupancy else _AtBoundaries(block, _CpuClock())
    return _Native(made, occupancy, block)


class _Native:
    """The native gate, at operators or at the occupancy GPU's launches."""

    def __init__(self, native_gate: NativeGate, occupancy: Any, block: Block) -> None:  # noqa: ANN401 (a module)
        self._native = native_gate
        self._occupancy = occupancy
        self._phase_path = _phase_path(block)
        self._owner: OwnerWatch | None = None
        self._look_for_owner()
        if occupancy:
            occupancy.hold_launches(native_gate)

    @property
    def slept_ns(self) -> int:
        return self._native.slept_ns

    def at_boundary(self, epoch: int) -> None:
        self._native.heard(epoch)
        self._look_for_owner()

    def remove(self) -> None:
        if self._occupancy:
            self._occupancy.hold_launches(None)
        self._native.remove()
        if self._owner:
            self._owner.close()

    def _look_for_owner(self) -> None:
        """A GPU gets another owner, and with it another word, while a guest is on it."""
        before = self._owner
        if not self._phase_path or (before and not before.is_replaced()):
            return
        try:
            self._owner = OwnerWatch(self._phase_path)
        except OSError:
            self._owner = None  # nobody says when it waits: the share alone counts
        self._native.watch(self._owner)
        if before:
            before.close()


def _phase_path(block: Block) -> str:
    """Where the owner of a guest's GPU says that it waits; of several GPUs only the first counts.

    An owner never opens its own word here: closing it would drop the lock by which it is known.
    """
    told = block.identity
    if told.role != Role.GUEST or not told.gpu_uuids:
        return ""
    return owner_phase.path(block.run_dir, told.gpu_uuids[0])


class _AtLaunches:
    """The occupancy GPU without native code: a bucket where kernels are launched."""

    def __init__(self, block: Block, occupancy: Any) -> None:  # noqa: ANN401 (a module)
        self._launched_ns = 0
        self._occupancy = occupancy
        self._bucket = Bucket(block.asked_share_pct, lambda: self._launched_ns)
        occupancy.hold_launches(self)

    @property
    def slept_ns(self) -> int:
        return self._bucket.slept_ns

    def admit(self, _begin_ns: int, _duration_ns: int) -> None:
        self._bucket.wait()

    def charge(self, device_ns: int, _ends_ns: int) -> None:
        self._launched_ns += device_ns

    def at_boundary(self, epoch: int) -> None:
        pass

    def remove(self) -> None:
        self._occupancy.hold_launches(None)


class _AtBoundaries:
    """A bucket that is asked between two mini-batches."""

    def __init__(self, block: Block, clock: _CpuClock | _CudaClock) -> None:
        self._clock = clock
        self._bucket = Bucket(block.asked_share_pct, clock.used_ns)

    @property
    def slept_ns(self) -> int:
        return self._bucket.slept_ns

    def at_boundary(self, epoch: int) -> None:  # noqa: ARG002 (a gate that has no request to let through)
        self._clock.stop()
        self._bucket.wait()
        self._clock.start()

    def remove(self) -> None:
        pass


class _CpuClock:
    """What this process has computed; the core stands for the GPU."""

    used_ns = staticmethod(time.process_time_ns)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _CudaClock:
    """The time between two boundaries on the device, by events. This has never run on a GPU."""

    def __init__(self) -> None:
        self._used_ns = 0
        self._began: Any = None
        self.start()

    def used_ns(self) -> int:
        return self._used_ns

    def start(self) -> None:
        self._began = self._event()

    def stop(self) -> None:
        ended = self._event()
        ended.synchronize()  # whoever is throttled has no use for a full queue
        self._used_ns += int(self._began.elapsed_time(ended) * 1e6)

    def _event(self) -> Any:  # noqa: ANN401 (torch's)
        event = sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record()
        return event
