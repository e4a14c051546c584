# SPDX-License-Identifier: Apache-2.0
"""What the poller sees of Slurm, as events. The translation is pure; the watcher only delivers."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from slipstream.core.events import ClusterSeen, SlurmFound, SlurmLost, TopologyRead
from slipstream.core.sights import JobSight, NodeSight, Standing
from slipstream.scheduler.marker import MarkerError, request_of
from slipstream.scheduler.placeholders import holds_for
from slipstream.slurm_plugin import JobState, SlurmError
from slipstream.slurm_plugin.gres import total
from slipstream.slurm_plugin.node_room import need_of
from slipstream.slurm_plugin.soft_hold import as_its_user_left_it

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slipstream.core.events import Event
    from slipstream.core.sights import Request
    from slipstream.slurm_plugin import Changes, Job, Node, Poller, Slurm, Snapshot

_LOG = logging.getLogger(__name__)
_STANDING: Final[Mapping[JobState, Standing]] = {
    JobState.PENDING: Standing.WAITING,
    JobState.RUNNING: Standing.RUNNING,
    JobState.SUSPENDED: Standing.SUSPENDED,
    JobState.UNTOLD: Standing.COMPLETING,
}


class Watcher:
    """Delivers what the poller sees.

    Args:
        slurm: asked for the topology, once and whenever nodes come or go.
        poller: watched from now on.
        deliver: called in the poller's thread with events in order.
    """

    def __init__(
        self, slurm: Slurm, poller: Poller, deliver: Callable[[Sequence[Event]], None]
    ) -> None:
        self._slurm = slurm
        self._deliver = deliver
        self._complete = False
        self._away = False
        poller.subscribe(self._told)

    def _told(self, snapshot: Snapshot, changes: Changes) -> None:
        if snapshot.error:
            self._away = True
            self._deliver([SlurmLost(time.time(), str(snapshot.error))])
            return
        events: list[Event] = [SlurmFound(time.time())] if self._away else []
        self._away = False
        if not self._complete or changes.nodes_gone:
            events += self._topology()
        events.append(seen(snapshot, changes, complete=not self._complete))
        self._complete = True
        self._deliver(events)

    def _topology(self) -> list[Event]:
        try:
            return [TopologyRead(time.time(), self._slurm.topology().groups)]
        except SlurmError as error:
            _LOG.warning("the topology is not known, all nodes count as near: %s", error)
            return []


def seen(snapshot: Snapshot, changes: Changes, *, complete: bool) -> ClusterSeen:
    """One poll; the first one is complete: what is not in it is gone."""
    jobs = snapshot.tasks if complete else (*changes.added, *(new for _, new in changes.changed))
    return ClusterSeen(
        at_s=snapshot.at_s or 0.0,
        jobs=tuple(sight_of(job) for job in jobs),
        jobs_gone=() if complete else tuple(str(job.ref) for job in changes.gone),
        nodes=tuple(node_sight_of(one) for one in (snapshot.nodes if complete else changes.nodes)),
        nodes_gone=() if complete else changes.nodes_gone,
        complete=complete,
    )


def sight_of(job: Job) -> JobSight:
    """A job as the core knows it: what we did to it ourselves is no news."""
    job = as_its_user_left_it(job)
    held = [gres for share in job.holds for gres in share.gres]
    standing = _STANDING.get(job.state, Standing.ENDED)
    standing = Standing.COMPLETING if job.completing else standing
    return JobSight(
        ref=str(job.ref),
        standing=standing,
        number=job.job_id,
        name=job.name,
        user=job.user,
        uid=job.uid,
        account=job.account,
        partition=job.partition,
        priority=job.priority,
        submitted_at_s=job.times.submitted_at_s,
        nodes=job.nodes,
        excluded_nodes=job.excluded_nodes,
        required_nodes=job.required_nodes,
        gpus=total(held, "gpu"),
        gpu_places=tuple(
            (share.node, index)
            for share in job.holds
            for gres in share.gres
            if gres.name == "gpu"
            for index in gres.indices
        ),
        slots=total(held, "slot"),
        wants_gpus=dict(need_of(job).gres).get("gpu", 0),
        wants_nodes=max(1, job.node_count),
        time_limit_s=job.time_limit_s,
        ends_at_s=job.times.ended_at_s if standing is Standing.RUNNING else None,
        slurm_reason=job.reason,
        slurm_text=job.reason_text,
        holds_for=holds_for(job),
        request=_request(job),
    )


def node_sight_of(node: Node) -> NodeSight:
    """A node as the core knows it."""
    return NodeSight(
        name=node.name,
        takes_jobs=node.takes_jobs,
        drained=node.drained,
        state=str(node.state),
        partitions=node.partitions,
        gpus=total(node.gres, "gpu"),
        gpus_used=total(node.gres_used, "gpu"),
        slots=total(node.gres, "slot"),
        slots_used=total(node.gres_used, "slot"),
        cpus=node.cpus,
        cpus_used=node.cpus_used,
        memory_mib=node.memory_mib,
        memory_used_mib=node.memory_used_mib,
    )


def _request(job: Job) -> Request | None:
    """A marker that is none of ours leaves the job to Slurm."""
    try:
        return request_of(job)
    except MarkerError as error:
        _LOG.warning("%s", error)
        return None
