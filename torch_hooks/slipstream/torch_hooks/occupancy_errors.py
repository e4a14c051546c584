# SPDX-License-Identifier: Apache-2.0
"""What an occupancy GPU refuses. RuntimeErrors, as torch raises them for a real one."""

from __future__ import annotations


class OccupancyError(RuntimeError):
    """The GPU cannot do what was asked. Raised only while its memory is in order."""


class NoDeviceError(OccupancyError):
    """There is no such GPU for this process."""


class OutOfMemoryError(OccupancyError):
    """The processes on the GPU and this request do not fit into its memory together."""


class DeviceLostError(OccupancyError):
    """The GPU fell off the bus, or was reset since this process opened it."""
