# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the containers of a cluster have in common. Sourced, not run.
#
# /etc/slurm is a volume all of them see, as a site's shared /etc/slurm is. Nodes take the lowest free
# number when they come, so that 'docker compose up --scale node=4' needs no list of names.
set -euo pipefail

etc=/etc/slurm
hosts=$etc/hosts.d
gpus=${GPUS:-4}

say() { printf 'slurm-container: %s\n' "$*" >&2; }

# The first 60 s of anything: it comes, or the container ends with a sentence.
await() { # WHAT COMMAND…
  local what=$1 _
  shift
  for _ in $(seq 300); do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.2
  done
  say "$what did not come within a minute"
  exit 1
}

start_munge() {
  mkdir -p "$etc" /run/munge
  chown munge: /run/munge /var/lib/munge /var/log/munge
  (
    flock 9
    [ -s "$etc/munge.key" ] || dd if=/dev/urandom of="$etc/munge.key" bs=1024 count=1 status=none
  ) 9>"$etc/.munge.lock"
  install -o munge -g munge -m 400 "$etc/munge.key" /etc/munge/munge.key
  chmod 600 "$etc/munge.key"
  setpriv --reuid munge --regid munge --clear-groups munged --force
}

# Names and addresses of nodes, kept in /etc/hosts while the container lives.
follow_hosts() {
  cp /etc/hosts /run/hosts.own
  while :; do
    cat /run/hosts.own "$hosts"/n* >/run/hosts.now 2>/dev/null || true
    cmp -s /run/hosts.now /etc/hosts || cat /run/hosts.now >/etc/hosts
    sleep 0.5
  done
}

# Who I am, for as long as descriptor 8 is open: the lock goes with the container.
take_number() {
  local number address
  mkdir -p "$hosts"
  address=$(hostname -i | awk '{print $1}')
  for number in 1 2 3 4 5 6 7 8; do
    exec 8>"$hosts/.lock$number"
    if flock -n 8; then
      node=n$number
      printf '%s %s\n' "$address" "$node" >"$hosts/$node.new"
      mv "$hosts/$node.new" "$hosts/$node"
      return 0
    fi
  done
  say "there are eight nodes already"
  exit 1
}

# What stands for a driver: device nodes, and the GPUs' memory that NVML tells of.
make_gpus() { # NODE
  local number
  for ((number = 0; number < gpus; number++)); do
    [ -e "/dev/nvidia$number" ] || mknod -m 666 "/dev/nvidia$number" c 195 "$number"
  done
  cp "/opt/simulated-gpus/$1" /dev/shm/simulated-gpus
  cp "/opt/simulated-gpus/$1.lock" /dev/shm/simulated-gpus.lock
  chmod 666 /dev/shm/simulated-gpus /dev/shm/simulated-gpus.lock
  export SLIPSTREAM_GPU_STATE=/dev/shm/simulated-gpus
}

# Plain Slurm, as a site might have it before it has heard of us.
write_slurm_conf() { # CONTROLLER NODES ACCOUNTING…
  local controller=$1 nodes=$2
  shift 2
  cat >"$etc/slurm.conf" <<CONF
ClusterName=docker
SlurmctldHost=$controller
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=$etc/task_prolog.sh
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=bf_interval=1,sched_interval=1
GresTypes=gpu
ReturnToService=2
DefMemPerCPU=100
$(printf '%s\n' "$@")
NodeName=$nodes CPUs=16 RealMemory=16000 Gres=gpu:$gpus State=UNKNOWN
PartitionName=batch Nodes=$nodes Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
CONF
  printf 'NodeName=%s Name=gpu File=/dev/nvidia[0-%d]\n' "$nodes" $((gpus - 1)) >"$etc/gres.conf"
  # Nothing here needs cgroups, and from 23.11 on slurmd wants to be told so.
  if [ "$(slurmd -V | awk '{print ($2 >= "23.11")}')" = 1 ]; then
    printf 'CgroupPlugin=disabled\n' >"$etc/cgroup.conf"
  fi
  printf '#!/bin/sh\necho export SLIPSTREAM_GPU_STATE=/dev/shm/simulated-gpus\n' \
    >"$etc/task_prolog.sh"
  chmod 755 "$etc/task_prolog.sh"
}

slurm_folders() {
  install -d -o slurm -g slurm /var/lib/slurm/slurmctld /var/log/slurm
  install -d /var/lib/slurm/slurmd
}

# Not a function: in the background that would be a shell, and the daemon its child.
# shellcheck disable=SC2034 # for those who source this
as_slurm=(setpriv --reuid slurm --regid slurm --init-groups)

# Until the first of them ends: then the container does, and its engine says so.
stay() {
  local code=0
  trap 'kill $(jobs -p) 2>/dev/null; exit 0' TERM INT
  wait -n "$@" || code=$?
  say "a daemon has ended ($code)"
  exit 1
}
