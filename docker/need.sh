# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts here use of Debian, installed when it is first needed. Sourced, not run.

need() { # COMMAND PACKAGE
  local log
  command -v "$1" >/dev/null && return 0
  if [ "$(id -u)" -ne 0 ]; then
    say "$1 is missing, and only root can install it: apt-get install $2"
    return 1
  fi
  say "installing $2"
  log=$(mktemp)
  if apt-get install -y -q --no-install-recommends "$2" >"$log" 2>&1 ||
    { apt-get update -q && apt-get install -y -q --no-install-recommends "$2"; } >>"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  tail -3 "$log" >&2
  say "apt-get install $2 failed (log: $log)"
  return 1
}
