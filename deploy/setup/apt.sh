#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install the system packages of packages.txt that are missing, through sudo when not root.
# Does nothing, quickly, when all are there. Never starts or enables a service.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
say() { printf 'slipstream setup: %s\n' "$*" >&2; }

mapfile -t wanted < <(grep -vE '^[[:space:]]*(#|$)' "$here/packages.txt")

# shellcheck source=/dev/null
system=$(. /etc/os-release 2>/dev/null && printf '%s' "${PRETTY_NAME:-unknown}") || system=unknown
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  say "this system ($system) has no apt: Debian 12 or later and Ubuntu 22.04 or later are supported."
  say "Elsewhere install these yourself and run 'make SKIP_APT=1 …': ${wanted[*]}"
  exit 1
fi

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    say "these packages are missing, and there is neither root nor sudo to install them:"
    say "  apt-get install --no-install-recommends ${missing[*]}"
    exit 1
  fi
  as_root=(sudo)
fi

say "installing ${missing[*]}"
# A package must not start its service here: the sandbox starts its own daemons, on its own ports.
policy=/usr/sbin/policy-rc.d
made_policy=no
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
  made_policy=yes
fi
cleanup() { [ "$made_policy" = no ] || "${as_root[@]}" rm -f "$policy"; }
trap cleanup EXIT

install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}
without_browser() {
  # Ubuntu has chromium as a snap only: the dashboard's browser tests are then skipped.
  local kept=()
  for package in "${missing[@]}"; do [ "$package" = chromium ] || kept+=("$package"); done
  [ ${#kept[@]} -lt ${#missing[@]} ] || return 1
  missing=("${kept[@]}")
  say "apt-get could not install chromium (browser tests will be skipped): going on without it"
  [ ${#missing[@]} -eq 0 ] || install
}
install || { "${as_root[@]}" apt-get update -q && install; } || without_browser || {
  say "apt-get could not install: ${missing[*]} (see the lines above)"
  exit 1
}
