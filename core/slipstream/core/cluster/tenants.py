# SPDX-License-Identifier: Apache-2.0
"""Tenants: their quotas of GPUs, and what they used of them, which fades."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Role

if TYPE_CHECKING:
    from slipstream.core.cluster.jobs import Job

_LEAST_PART: Final = 0.1
"""Of the smallest share: what one without any counts as having, so as not to wait for ever."""


@dataclass(slots=True)
class Tenant:
    """One account."""

    share: float
    charged: int = 0
    """GPUs its guaranteed jobs own."""
    seated: int = 0
    """GPUs its owners hold, of any class: guests are free."""
    used_gpu_s: float = 0.0
    at_s: float = 0.0


@dataclass(slots=True)
class Tenants:
    """All of them; quotas follow the size of the cluster."""

    shares: dict[str, float]
    half_life_s: float
    gpus: int = 0
    """Of the whole cluster."""
    _known: dict[str, Tenant] = field(default_factory=dict)
    _shared: float = 0.0
    _quotas: dict[str, int] = field(default_factory=dict)
    _quotas_of: int = 0
    """The size of the cluster they were counted for."""

    def __post_init__(self) -> None:
        self._shared = sum(self.shares.values())

    def of(self, name: str) -> Tenant:
        """One of them."""
        found = self._known.get(name)
        if found is None:
            least = min(self.shares.values(), default=1.0) * _LEAST_PART
            found = self._known[name] = Tenant(self.shares.get(name, least))
        return found

    def quota(self, name: str) -> int:
        """GPUs its guaranteed jobs may own."""
        if self._quotas_of != self.gpus:
            self._quotas_of, self._quotas = self.gpus, {}
        found = self._quotas.get(name)
        if found is None:
            found = int(self.gpus * self.shares.get(name, 0.0) / max(1e-9, self._shared))
            self._quotas[name] = found
        return found

    def may_own(self, job: Job) -> bool:
        """Whether its quota has room; one job at a time may be larger than the quota itself.

        Where nobody has a share, nobody has a quota.
        """
        if not self.shares:
            return True
        charged = self.of(job.ask.tenant).charged
        return charged == 0 or charged + job.ask.gpus <= self.quota(job.ask.tenant)

    def sat(self, job: Job, at_s: float) -> None:
        """A job has taken its seats, or its role has changed."""
        if job.role is Role.OWNER:
            self._count(job, at_s, 1)

    def stood(self, job: Job, at_s: float) -> None:
        """It gives them up."""
        if job.role is Role.OWNER:
            self._count(job, at_s, -1)

    def had(self, name: str, at_s: float) -> float:
        """What a tenant's owners had, for its share; the past fades."""
        tenant = self.of(name)
        self._fade(tenant, at_s)
        return tenant.used_gpu_s / tenant.share

    def _count(self, job: Job, at_s: float, sign: int) -> None:
        """What an elastic job has beyond what it asked for is borrowed, not charged."""
        tenant = self.of(job.ask.tenant)
        self._fade(tenant, at_s)
        tenant.seated += sign * len(job.gpus)
        if job.is_guaranteed and job.ask.job_class is not JobClass.SHARED:
            tenant.charged += sign * job.ask.gpus

    def _fade(self, tenant: Tenant, at_s: float) -> None:
        past_s = at_s - tenant.at_s
        if past_s > 0.0:
            tenant.used_gpu_s *= 0.5 ** (past_s / self.half_life_s)
            tenant.used_gpu_s += tenant.seated * past_s
            tenant.at_s = at_s
