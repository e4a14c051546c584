# SPDX-License-Identifier: Apache-2.0
"""All guests of a node that share GPUs nobody owns: who is tried with whom, and who takes turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core.classes import Role
from slipstream.core.node.commands import Unpark
from slipstream.core.node.packing import Packed, Packing
from slipstream.core.node.reasons import NodeReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.node.commands import NodeCommand
    from slipstream.core.node.gpu import GpuState, JobState, Limits
    from slipstream.core.node.packing import PackVerdict
    from slipstream.core.node.pulse import Sample
    from slipstream.core.node.wheel import Wheel


class Packings:
    """By GPU. Jobs, GPUs and the wheel are the machine's own."""

    def __init__(
        self, jobs: Mapping[int, JobState], gpus: Mapping[str, GpuState], wheel: Wheel
    ) -> None:
        self.by_gpu: dict[str, Packing] = {}
        self._jobs = jobs
        self._gpus = gpus
        self._wheel = wheel
        self._let_go_of: list[NodeCommand] = []

    # --- for those who look in ------------------------------------------------------------------

    def verdicts(self) -> list[PackVerdict]:
        """What guests that share a GPU nobody owns were measured to do together."""
        return [one.verdict for _, one in sorted(self.by_gpu.items()) if one.verdict]

    def wakes_at_s(self) -> float | None:
        """When time alone changes something."""
        due = [one.due_s for one in self.by_gpu.values() if one.due_s is not None]
        return min(due, default=None)

    def quiet_until_s(self, gpu: str) -> float | None:
        """Until when nothing is tried on a GPU; None: something is."""
        packing = self.by_gpu.get(gpu)
        if packing is None or packing.due_s is None:
            return float("inf")
        return packing.due_s if packing.is_settled else None

    def is_apart(self, job_id: int) -> bool:
        """Whether a guest takes turns with its neighbours."""
        return any(one.stage is Packed.APART and job_id in one.jobs for one in self.by_gpu.values())

    def limited(self, gpu: str, limits: Mapping[int, Limits]) -> dict[int, Limits]:
        """What everybody may use of a GPU, while somebody is looked at alone."""
        packing = self.by_gpu.get(gpu)
        return packing.limited(limits) if packing else dict(limits)

    # --- what happened --------------------------------------------------------------------------

    def heard(self, gpu: str, job_id: int, sample: Sample) -> None:
        """A job has done a few mini-batches."""
        if packing := self.by_gpu.get(gpu):
            packing.heard(job_id, sample)

    def seated(self, at_s: float, touched: Iterable[str]) -> list[NodeCommand]:
        """Who shares a GPU now; who took turns with somebody that has left need not any more."""
        commands, self._let_go_of = self._let_go_of, []
        for name in touched:
            jobs, known = self._packable(name), self.by_gpu.get(name)
            if known and known.jobs != jobs:
                del self.by_gpu[name]
                commands += self._let_go(known)
            if jobs and name not in self.by_gpu:
                self.by_gpu[name] = Packing(jobs, self._wheel.rules)
            packing = self.by_gpu.get(name)
            if packing and packing.stage is Packed.APART:
                for job in packing.jobs:
                    self._wheel.add(self._jobs[job].job, at_s, NodeReason.TAKEN_APART)
        return commands

    def tried(self, names: Iterable[str], at_s: float) -> bool:
        """Whether a trial has gone on."""
        packings = [self.by_gpu[name] for name in names if name in self.by_gpu]
        gone_on = [one.advance(at_s, self._jobs) for one in packings]
        return any(gone_on)

    def tried_by_now(self, at_s: float) -> list[str]:
        """Where time alone has brought a trial on, or it is time for another one."""
        due = [name for name, one in self.by_gpu.items() if one.due_s and one.due_s <= at_s]
        found = []
        for name in due:
            if self.by_gpu[name].is_settled:
                self.try_again(name)
                found.append(name)
            elif self.by_gpu[name].advance(at_s, self._jobs):
                found.append(name)
        return found

    def try_again(self, name: str) -> None:
        """From the beginning: together, as they were."""
        if packing := self.by_gpu.get(name):
            self.by_gpu[name] = Packing(packing.jobs, self._wheel.rules, anew=True)
            self._let_go_of += self._let_go(packing)

    def _packable(self, name: str) -> tuple[int, ...]:
        """Guests that share a GPU nobody owns and can be tried there; none if they are one.

        Whom an operator has parked is not there.
        """
        gpu = self._gpus.get(name)
        on_it = [self._jobs[job] for job in gpu.jobs] if gpu else []
        there = [one for one in on_it if not one.ordered_away]
        alike = all(
            one.job.role is Role.GUEST
            and one.job.hooked
            and not one.job.takes_turns
            and len(one.job.gpus) == 1
            and not one.job.gang
            for one in there
        )
        return tuple(one.job.job_id for one in there) if alike and len(there) > 1 else ()

    def _let_go(self, packing: Packing) -> list[NodeCommand]:
        """They take no turns any more; who was parked for that goes on, unless an operator says."""
        members = [(job, self._wheel.members.get(job)) for job in packing.jobs]
        commands: list[NodeCommand] = []
        for job, member in members:
            if member is None or job not in self._jobs or member.job.takes_turns:
                continue
            self._wheel.remove(job)
            if member.told_to_park and not self._jobs[job].ordered_away:
                commands.append(Unpark(job, NodeReason.NO_OWNER))
        return commands
