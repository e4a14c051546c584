#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make a base image with debootstrap, for machines that reach a Debian mirror and no registry.
#
#   base.sh SUITE          bookworm, trixie or forky; the image is slipstream-base:SUITE
#
# MIRROR names the archive; by default the one this machine's own apt uses for Debian.
# Needs root. An image that is there already is left alone.
set -euo pipefail

suite=${1:?usage: base.sh bookworm|trixie|forky}
image=slipstream-base:$suite
say() { printf 'slipstream docker: %s\n' "$*" >&2; }

docker image inspect "$image" >/dev/null 2>&1 && exit 0
[ "$(id -u)" -eq 0 ] || { say "debootstrap needs root"; exit 1; }
# shellcheck source=docker/need.sh
. "$(dirname "$0")/need.sh"
need debootstrap debootstrap
need curl curl

# shellcheck disable=SC2016 # apt's own variables
mirror=${MIRROR:-$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' 2>/dev/null |
  awk '$2 == "Debian" && $3 == "Debian" { print $1; exit }')}
mirror=${mirror:-http://deb.debian.org/debian}
mirror=${mirror%/}
scripts=/usr/share/debootstrap/scripts
script=$scripts/$suite
[ -e "$script" ] || script=$scripts/trixie # a release that this debootstrap has not heard of
[ -e "$script" ] || script=$scripts/sid

tree=$(mktemp -d "${TMPDIR:-/tmp}/slipstream-base-XXXXXX")
trap 'rm -rf "$tree"' EXIT
say "making $image from $suite"
debootstrap --variant=minbase --include=ca-certificates "$suite" "$tree" "$mirror" "$script" \
  >"$tree.log" 2>&1 || { tail -5 "$tree.log" >&2; say "debootstrap failed (log: $tree.log)"; exit 1; }
rm -f "$tree.log"
printf 'Acquire::Check-Valid-Until "false";\nAPT::Install-Recommends "false";\n' \
  >"$tree/etc/apt/apt.conf.d/90slipstream"
# With fixes, where the mirror has them: their sources stay in the archive, those of what they
# replace do not, and the select wrapper is built from source.
{
  printf 'deb %s %s main\n' "$mirror" "$suite"
  for more in "$mirror $suite-updates" "${mirror%/debian*}/debian-security $suite-security"; do
    if curl -fsI -o /dev/null "${more% *}/dists/${more#* }/InRelease" 2>/dev/null; then
      printf 'deb %s main\n' "$more"
    fi
  done
} >"$tree/etc/apt/sources.list"
# What this machine trusts, so that a mirror or package index behind it can be reached from inside:
# as certificates of the site's own, which stay when ca-certificates is upgraded.
bundle=/etc/ssl/certs/ca-certificates.crt
own=$tree/usr/local/share/ca-certificates
mkdir -p "$own"
awk -v own="$own" '
  /BEGIN CERTIFICATE/ { text = "" }
  { text = text $0 "\n" }
  /END CERTIFICATE/ {
    if (NR == FNR) known[text] = 1
    else if (!(text in known)) { known[text] = 1; printf "%s", text >(own "/host-" ++count ".crt") }
  }' "$tree$bundle" "$bundle"
chroot "$tree" update-ca-certificates >/dev/null 2>&1
rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/*
tar -C "$tree" -c . | docker import --change 'CMD ["/bin/bash"]' - "$image" >/dev/null
say "$image is there"
