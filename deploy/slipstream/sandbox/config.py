# SPDX-License-Identifier: Apache-2.0
"""The files Slurm reads, rendered from a plan. Pure: text in, text out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ClusterShell.NodeSet import NodeSet

from slipstream.sandbox import plugins
from slipstream.sandbox.layout import MARKER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from slipstream.sandbox.layout import Layout
    from slipstream.sandbox.plan import Plan


def slurm_conf(plan: Plan, layout: Layout, *, hostname: str) -> str:
    """slurm.conf of the whole cluster."""
    settings: dict[str, str] = {
        "ClusterName": layout.name,
        "SlurmctldHost": f"{hostname}({plan.head_address})",
        "SlurmctldPort": str(plan.controller_port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        # 5 s is the least Slurm takes: a job requeued to the same node waits that long.
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=5",
        "StateSaveLocation": str(layout.state),
        "SlurmdSpoolDir": f"{layout.spool}/%n",
        "SlurmctldPidFile": f"{layout.run}/slurmctld.pid",
        "SlurmdPidFile": f"{layout.run}/slurmd-%n.pid",
        "SlurmctldLogFile": f"{layout.log}/slurmctld.log",
        "SlurmdLogFile": f"{layout.log}/slurmd-%n.log",
        "SlurmctldDebug": "info",
        "SlurmdDebug": "info",
        "SlurmdParameters": "config_overrides",
        **_listen_on_loopback(plan),
        # Several slurmd share one machine: no plugin that would claim the machine for itself.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "TaskProlog": str(layout.task_prolog),
        "MpiDefault": "none",
        **({"PluginDir": plan.plugin_dir} if plan.plugin_dir else {}),
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU_Memory",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": _scheduler_parameters(plan),
        "PriorityType": "priority/basic",
        "TopologyPlugin": "topology/tree",
        "GresTypes": "gpu" if plan.stock else "gpu,slot",
        "JobFileAppend": "1",
        "JobRequeue": "1",
        "ReturnToService": "2",
        "KillWait": "5",
        "SlurmctldTimeout": "60",
        "SlurmdTimeout": "60",
        "MinJobAge": "600",
        "MailProg": "/bin/true",
        "DefMemPerCPU": str(plugins.DEFAULT_MEMORY_PER_CPU_MIB),
        **({} if plan.stock else plugins.slurm_settings()),
        **_accounting_settings(plan, layout),
    }
    gres = f"gpu:{plan.shape.gpus_per_node}"
    if not plan.stock:
        gres += f",slot:{plan.shape.slots_per_node}"
    nodes = [
        f"NodeName={node} NodeHostname={hostname} NodeAddr={plan.node_address(node)} "
        f"Port={plan.node_port(node)} CPUs={plan.shape.cpus_per_node} "
        f"RealMemory={plan.shape.node_memory_mib} Gres={gres} State=UNKNOWN"
        for node in plan.shape.node_names
    ]
    partition = (
        f"PartitionName=batch Nodes={fold(plan.shape.node_names)} Default=YES "
        "MaxTime=INFINITE DefaultTime=60 State=UP"
    )
    if plan.shape.owners_hold_all_cpus:
        partition += f" DefCpuPerGPU={plan.shape.cpus_per_node // plan.shape.gpus_per_node}"
    return "\n".join([*_key_values(settings), *nodes, partition, ""])


def gres_conf(plan: Plan, layout: Layout) -> str:
    """gres.conf: real device nodes for `gpu`, a plain count for `slot`."""
    last = plan.shape.gpus_per_node - 1
    files = "nvidia0" if last == 0 else f"nvidia[0-{last}]"
    lines = ["AutoDetect=off"]
    for node in plan.shape.node_names:
        lines.append(f"NodeName={node} Name=gpu File={layout.devices(node)}/{files}")
        if not plan.stock:
            slots = plan.shape.slots_per_node
            lines.append(f"NodeName={node} Name=slot Count={slots} Flags=CountOnly")
    return "\n".join([*lines, ""])


def cgroup_conf(release: tuple[int, int]) -> str:
    """cgroup.conf: several slurmd share one machine, and none may claim its cgroups."""
    return "CgroupPlugin=disabled\n" if release >= (23, 11) else "CgroupAutomount=no\n"


def topology_conf(plan: Plan) -> str:
    """topology.conf: racks below one domain."""
    racks = plan.shape.rack_nodes
    lines = [f"SwitchName={rack} Nodes={fold(nodes)}" for rack, nodes in racks.items()]
    return "\n".join([*lines, f"SwitchName=domain Switches={fold(racks)}", ""])


def slurmdbd_conf(plan: Plan, layout: Layout, *, hostname: str, password: str) -> str:
    """slurmdbd.conf; the caller must make it readable by its owner only."""
    return "\n".join(
        [
            *_key_values(
                {
                    "AuthType": "auth/munge",
                    "AuthInfo": f"socket={layout.munge_socket}",
                    "DbdHost": hostname,
                    "DbdAddr": plan.head_address,
                    "DbdPort": str(plan.slurmdbd_port),
                    "SlurmUser": "root",
                    "DebugLevel": "info",
                    "LogFile": f"{layout.log}/slurmdbd.log",
                    "PidFile": f"{layout.run}/slurmdbd.pid",
                    "StorageType": "accounting_storage/mysql",
                    "StorageHost": plan.head_address,
                    "StoragePort": str(plan.database_port),
                    "StorageUser": "slurm",
                    "StoragePass": password,
                    "StorageLoc": "slurm_acct_db",
                }
            ),
            "",
        ]
    )


def task_prolog(layout: Layout, *, nvml_folder: Path) -> str:
    """What a task finds of its node's GPUs, as a driver's installation would give it."""
    return f"""#!/bin/sh
echo "export {MARKER_VARIABLE}={layout.root}"
echo "export SLIPSTREAM_GPU_STATE={layout.gpu_state("$SLURMD_NODENAME")}"
echo "export LD_LIBRARY_PATH={nvml_folder}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
"""


def hosts(plan: Plan) -> str:
    """/etc/hosts as the nodes see it when each has a network of its own."""
    lines = ["127.0.0.1 localhost", f"{plan.head_address} head"]
    lines += [f"{plan.node_address(node)} {node}" for node in plan.shape.node_names]
    return "\n".join([*lines, ""])


def fold(names: Iterable[str]) -> str:
    """n1, n2, n3 as n[1-3]."""
    return str(NodeSet.fromlist(list(names)))


def _scheduler_parameters(plan: Plan) -> str:
    parameters = "bf_interval=1,sched_interval=1"
    # Advice must be able to reach the board before a job starts: nothing starts inside a submit.
    return parameters if plan.stock else parameters + ",defer"


def _listen_on_loopback(plan: Plan) -> dict[str, str]:
    # Slurm then binds the address of the machine's own name, so that must be a loopback one.
    if plan.netns or not plan.loopback:
        return {}
    return {"CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny"}


def _accounting_settings(plan: Plan, layout: Layout) -> dict[str, str]:
    if not plan.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": plan.head_address,
        "AccountingStoragePort": str(plan.slurmdbd_port),
        "AccountingStoragePass": str(layout.munge_socket),  # the name of munge's socket, in truth
        "AccountingStorageTRES": "gres/gpu" if plan.stock else "gres/gpu,gres/slot",
        "AccountingStorageEnforce": "associations,limits,qos",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=5",
    }


def _key_values(settings: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]
