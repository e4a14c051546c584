# SPDX-License-Identifier: Apache-2.0
"""Keeping a guest to its share: where its device's work begins, or at boundaries where that fails.

On the CPU and on CUDA operators wait in the native gate; on the occupancy GPU launches do. Without
the native gate the process pauses at boundaries by a bucket of the same kind. A gate is made at the
boundary where a share below 100 % is first read, and removed at the one where it is 100 again.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from slipstream.torch_hooks import courtesy, cuda_runtime, native, which_device
from slipstream.torch_hooks.bucket import Bucket
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.torch_hooks.owner_watch import OwnerWatch
from slipstream.wire import owner_phase
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from slipstream.torch_hooks.block import Block
    from slipstream.torch_hooks.notes import Notes


_GRAPHS_EVERY_S = 10.0


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
    courtesy.yield_processor(block)  # whoever is to be spared on the GPU is on the cores, too
    occupancy = which_device.occupancy()
    if occupancy is None and which_device.cuda():
        return _OnCuda(block, notes)
    try:
        made = NativeGate(
            block.asked_share_pct(),
            down_address=block.down_address,
            at_operators=occupancy is None,
        )
    except native.NativeError as error:
        notes.problem("no native gate", f"{error}; it pauses at boundaries instead")
        return _AtLaunches(block, occupancy) if occupancy else _AtBoundaries(block, _CpuClock())
    return _Native(made, occupancy, block, notes)


class _Native:
    """The native gate, at operators or at the occupancy GPU's launches."""

    def __init__(
        self,
        native_gate: NativeGate,
        occupancy: Any,  # noqa: ANN401 (a module)
        block: Block,
        notes: Notes,
    ) -> None:
        self._native = native_gate
        self._notes = notes
        self._refused: set[str] = set()
        self._occupancy = occupancy
        self._phase_paths = _phase_paths(block)
        self._owners: dict[str, OwnerWatch] = {}
        self._look_for_owners()
        if occupancy:
            occupancy.hold_launches(native_gate)

    @property
    def slept_ns(self) -> int:
        return self._native.slept_ns

    def at_boundary(self, epoch: int) -> None:
        self._native.heard(epoch)
        self._look_for_owners()

    def remove(self) -> None:
        if self._occupancy:
            self._occupancy.hold_launches(None)
        self._native.remove()
        for owner in self._owners.values():
            owner.close()

    def _look_for_owners(self) -> None:
        """A GPU gets another owner, and with it another word, while a guest is on it."""
        left = {path: one for path, one in self._owners.items() if not one.is_replaced()}
        fresh = {}
        for path in self._phase_paths:
            if path not in left:
                try:
                    fresh[path] = OwnerWatch(path)
                except FileNotFoundError:
                    pass  # nobody owns that GPU
                except OSError as error:
                    self._refuse(path, error)
        if not fresh and len(left) == len(self._owners):
            return
        before, self._owners = self._owners, {**left, **fresh}
        self._native.watch(list(self._owners.values()))
        for path, owner in before.items():
            if path not in left:
                owner.close()

    def _refuse(self, path: str, error: OSError) -> None:
        """Once: it is looked at again at each boundary."""
        if path not in self._refused:
            self._refused.add(path)
            self._notes.problem("owner's word", f"{error}; that owner's waits are not used")


class _OnCuda:
    """The native gate at operators of CUDA while that goes well, else boundaries. Never run."""

    def __init__(self, block: Block, notes: Notes) -> None:
        self._block = block
        self._notes = notes
        self._native: NativeGate | None = None
        self._slept_before_ns = 0
        self._gate: Gate
        try:
            self._native = NativeGate(
                block.asked_share_pct(),
                down_address=block.down_address,
                cuda=(cuda_runtime.loaded(), cuda_runtime.current_stream()),
            )
        except (native.NativeError, cuda_runtime.CudaRuntimeError) as error:
            self._fall_back(error)
        else:
            self._gate = _Native(self._native, None, block, notes)
            self._graphs_at_s = 0.0

    @property
    def slept_ns(self) -> int:
        return self._slept_before_ns + self._gate.slept_ns

    def at_boundary(self, epoch: int) -> None:
        if self._native is not None:
            try:
                self._look(self._native)
            except native.NativeError as error:
                self._slept_before_ns += self._gate.slept_ns
                self._gate.remove()
                self._native = None
                self._fall_back(error)
        self._gate.at_boundary(epoch)

    def remove(self) -> None:
        self._gate.remove()

    def _look(self, gate: NativeGate) -> None:
        gate.cuda_boundary(cuda_runtime.current_stream())
        if time.monotonic() >= self._graphs_at_s:
            self._graphs_at_s = time.monotonic() + _GRAPHS_EVERY_S
            if cuda_runtime.graphs():
                raise native.NativeError("CUDA graphs run without operators")

    def _fall_back(self, error: Exception) -> None:
        self._notes.problem("no native gate", f"{error}; it pauses at boundaries instead")
        self._gate = _AtBoundaries(self._block, _CudaClock())


def _phase_paths(block: Block) -> list[str]:
    """Where the owners of a guest's GPUs say that they wait.

    An owner never opens its own word here: closing it would drop the lock by which it is known.
    """
    told = block.identity
    if told.role != Role.GUEST:
        return []
    return [owner_phase.path(block.run_dir, uuid) for uuid in told.gpu_uuids]


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
