#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Docker engine for the containers: the one that runs, or one of our own.
#
#   engine.sh host         starts one if none runs, and prints what DOCKER_HOST must be
#   engine.sh down         ends the one that we started, by its pid, and leaves no process
#
# An engine of our own needs root. Data, socket and pid are below
# ${SLIPSTREAM_DOCKER_HOME:-build/docker}; nothing of the system's own engine is touched.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
home=${SLIPSTREAM_DOCKER_HOME:-$root/build/docker}
socket=unix://$home/docker.sock
say() { printf 'slipstream docker: %s\n' "$*" >&2; }
# shellcheck source=docker/need.sh
. "$root/docker/need.sh"
give_up() { say "no engine: $*"; exit 1; }
answers() { DOCKER_HOST=$1 docker version >/dev/null 2>&1; }

host() {
  local there=${DOCKER_HOST:-unix:///var/run/docker.sock}
  if command -v docker >/dev/null; then
    for one in "$there" "$socket"; do
      if answers "$one"; then printf '%s\n' "$one"; return; fi
    done
  fi
  [ "$(id -u)" -eq 0 ] || give_up "none runs, and only root can start one"
  if ! need dockerd docker.io || ! need iptables iptables; then give_up "see the line above"; fi
  mkdir -p "$home"
  # overlay2 by name: the engine's own guess may be vfs, which copies every layer.
  setsid dockerd --storage-driver overlay2 --data-root "$home/data" --exec-root "$home/exec" \
    --host "$socket" --pidfile "$home/dockerd.pid" >"$home/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do
    if answers "$socket"; then printf '%s\n' "$socket"; return; fi
    sleep 0.2
  done
  give_up "dockerd did not come up within 30 s: $(tail -1 "$home/dockerd.log")"
}

down() {
  [ -f "$home/dockerd.pid" ] || { say "no engine of ours runs"; return; }
  local pid
  pid=$(cat "$home/dockerd.pid")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || { say "the engine has ended; its images stay in $home"; return; }
    sleep 0.2
  done
  give_up "pid $pid does not end"
}

case ${1:-} in
  host | down) "$1" ;;
  *) say "usage: engine.sh host|down"; exit 2 ;;
esac
