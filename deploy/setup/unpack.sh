#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetch programs that only tests run, and unpack them into a folder without installing them.
#
#   unpack.sh FOLDER      e.g. build/tools; nothing is done if it is there
#
# Installed, these packages would have an NFS server and Prometheus started with the machine.
# Without apt or a reachable archive the tests that want them are skipped, and say so.
set -euo pipefail

wanted=(nfs-ganesha-vfs rpcbind libnfs-utils prometheus)
folder=$1
say() { printf 'slipstream setup: %s\n' "$*" >&2; }

[ ! -d "$folder" ] || exit 0
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT

fetch() {
  local packages
  # What an installation would bring along: the libraries of these that are not on the system.
  packages=$(apt-get install --simulate --no-install-recommends "${wanted[@]}" | awk '/^Inst / { print $2 }')
  # As root apt fetches as a user of its own, who must be able to write here.
  chmod 755 "$work" && mkdir -m 777 "$work/debs"
  # shellcheck disable=SC2086 # one word per package
  cd "$work/debs" && apt-get download -q ${packages:-${wanted[@]}}
}
say "fetching ${wanted[*]} for tests (log: $folder.log)"
if ! (fetch) > "$folder.log" 2>&1; then
  say "apt could not fetch them: tests with NFS and promtool are skipped"
  exit 0
fi
mkdir "$work/root"
for deb in "$work"/debs/*.deb; do dpkg-deb --extract "$deb" "$work/root"; done
mv "$work/root" "$folder"
