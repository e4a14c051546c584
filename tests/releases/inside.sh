#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Inside the tree of another Debian release, in namespaces of its own: build the wrapper, start a
# cluster of two nodes with it, run jobs. Prints one line for each thing seen; tests/releases
# compares them. The board was written before, by our own writer.
set -euo pipefail
mount -t proc proc /proc
ip link set lo up
# Slurm resolves names only where there is an address that is not the loopback's.
ip link add release0 type veth peer name release1
ip addr add 192.0.2.1/24 dev release0
ip link set release0 up
ip link set release1 up
echo "127.0.0.1 localhost $(hostname)" >/etc/hosts
folder=$(bash /slipstream/deploy/setup/select_plugin.sh)
stock=$(cat "$folder/.stock")
echo "built $(basename "$folder")"

work=/run/release
rm -rf "$work"
mkdir -p "$work"/{state,spool} /run/munge
dd if=/dev/urandom of="$work/munge.key" bs=128 count=1 2>/dev/null
chmod 400 "$work/munge.key"
chmod 755 "$work" /run/munge
munged --force --key-file="$work/munge.key" --socket="$work/munge.socket" \
  --pid-file="$work/munged.pid" --log-file="$work/munged.log" --seed-file="$work/munged.seed"
cat >"$work/slurm.conf" <<CONF
ClusterName=release
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
PluginDir=$folder:$stock
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=defer,bf_interval=1,sched_interval=1
ReturnToService=2
NodeName=n[1-2] NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=4 State=UNKNOWN
PartitionName=batch Nodes=n[1-2] Default=YES State=UP
CONF
echo "CgroupPlugin=disabled" >"$work/cgroup.conf"
export SLURM_CONF=$work/slurm.conf SLIPSTREAM_RUN_DIR=/run/slipstream
slurmctld >"$work/slurmctld.out" 2>&1
for node in n1 n2; do
  mkdir -p "$work/spool/$node"
  slurmd -N "$node" >"$work/slurmd-$node.out" 2>&1
done
sleep 1
[ -d "/proc/$(cat "$work/slurmctld.pid")" ] || { cat "$work/slurmctld.log" >&2; exit 1; }
for _ in $(seq 120); do
  [ "$(sinfo -h -N -o %t 2>/dev/null | sort -u)" = idle ] && break
  sleep 0.5
done
sinfo -h -N -o 'node %N %t'
grep -o 'slipstream: following the advice at .*' "$work/slurmctld.log" || echo "no word of the wrapper"

submit() { # a job that is known by the token $1, or by none
  local job
  job=$(sbatch --parsable --hold --output=/dev/null --wrap 'sleep 600')
  [ -z "$1" ] || scontrol update job="$job" admincomment="[slipstream v=1 token=$1]"
  scontrol release "$job"
  echo "$job"
}
place() { # of job $2, once it runs
  for _ in $(seq 120); do
    [ "$(squeue -h -j "$2" -o %T)" = RUNNING ] && break
    sleep 0.5
  done
  echo "$1 $(squeue -h -j "$2" -o '%T %N')"
}
place plain "$(submit "")"
place required "$(submit 00000000000000b2)"
place preferred "$(submit 00000000000000a2)"
nowhere=$(submit 0000000000000000)
sleep 4
echo "nowhere $(squeue -h -j "$nowhere" -o %T)"
touch /run/slipstream/go-on # the record is taken back
place "taken back" "$nowhere"
