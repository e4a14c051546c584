#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the select wrapper (slurm_plugin/select) for the installed Slurm, or say why it cannot be.
#
#   select_plugin.sh [FOLDER]      default: build/plugins/select of this repository
#
# The wrapper reads slurmctld's own structures, so it is built from the source package of exactly
# the installed package, Debian's patches included, and from nothing else. That source is fetched
# through a list of sources of its own: the system's is neither read for writing nor changed, no
# root is needed. Source and configuration are kept below ${SLIPSTREAM_CACHE:-~/.cache/slipstream}.
# Run again, it does nothing if nothing has changed. The last line printed is the plugin's folder.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
sources=$root/slurm_plugin/select
out=${1:-$root/build/plugins/select}
cache=${SLIPSTREAM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/slipstream}
export LC_ALL=C.UTF-8

say() { printf 'slipstream plugins: %s\n' "$*" >&2; }
give_up() {
  say "the select wrapper is not built: $*"
  say "Slipstream works without it, by soft hold: see docs/advice-board.md"
  exit 1
}

# --- which Slurm ---------------------------------------------------------------------------------
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  give_up "this system has no apt, so the source of the installed Slurm cannot be found"
fi
field() { # of package $1, empty if it is not installed
  { dpkg-query -W -f "\${db:Status-Status} \${$2}" "$1" 2>/dev/null || true; } |
    sed -n 's/^installed //p'
}
version=$(field slurmctld Version)
[ -n "$version" ] || give_up "the package slurmctld is not installed"
package=$(field slurmctld source:Package)
source_version=$(field slurmctld source:Version)
stock=$(dpkg -L slurm-wlm-basic-plugins 2>/dev/null | grep '/select_cons_tres\.so$' || true)
[ -f "$stock" ] || give_up "the stock select_cons_tres.so (package slurm-wlm-basic-plugins) is missing"
stock_version=$(field slurm-wlm-basic-plugins Version)
[ "$stock_version" = "$version" ] ||
  give_up "slurmctld is of $version, the stock plugins are of $stock_version"
upstream=${source_version#*:}
upstream=${upstream%-*}
upstream=${upstream%%[+~]*}
slurmctld=$(PATH=$PATH:/usr/sbin command -v slurmctld) || give_up "there is no slurmctld to run"
running=$("$slurmctld" -V 2>/dev/null | awk '{print $2}')
[ "$running" = "$upstream" ] ||
  give_up "$slurmctld says it is '$running', its package is $version: this is not that package's"

# --- nothing to do? ------------------------------------------------------------------------------
folder=$out/$version
digest=$(cat "$sources"/*.[ch] "$0" "$stock" | sha256sum | cut -c1-64)
if [ -f "$folder/select_cons_tres.so" ] && [ "$(cat "$folder/.digest" 2>/dev/null)" = "$digest" ]; then
  printf '%s\n' "$folder"
  exit 0
fi
command -v gcc >/dev/null || give_up "there is no gcc: apt-get install gcc libc6-dev"
build_id=$(readelf -n "$stock" | sed -n 's/^ *Build ID: *//p')
[ -n "$build_id" ] || give_up "$stock has no build id, so it could not be told from another build"

# --- its source, configured once -----------------------------------------------------------------
tree=$cache/slurm-source-$source_version
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

fetch() { # into the folder $1
  command -v dpkg-source >/dev/null || give_up "dpkg-source is missing: apt-get install dpkg-dev"
  local places keyring signed="" place uri suite component line
  places=$(apt-cache madison slurmctld | awk -F ' *[|] *' -v wanted="$version" \
    '$2 == wanted { split($3, at, " "); print at[1], at[2] }' | sort -u)
  [ -n "$places" ] ||
    give_up "apt knows no archive with slurmctld $version any more (is 'apt-get update' due?)"
  # shellcheck source=/dev/null
  keyring=/usr/share/keyrings/$(. /etc/os-release && printf '%s' "${ID:-debian}")-archive-keyring.gpg
  [ -r "$keyring" ] && signed=" [signed-by=$keyring]"
  mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
  while read -r uri place; do
    suite=${place%/*} component=${place##*/}
    printf 'deb-src%s %s %s %s\n' "$signed" "$uri" "$suite" "$component"
  done <<<"$places" >"$1/sources.list"
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$1/sources.list" -o Dir::Etc::SourceParts=-
    -o "Dir::State::Lists=$1/lists" -o "Dir::Cache=$1/cache" -o "APT::Sandbox::User=$(id -un)")
  say "fetching the source of $package $source_version"
  (cd "$1" && "${apt[@]}" update && "${apt[@]}" source --only-source "$package=$source_version") \
    >"$cache/fetch.log" 2>&1 || {
    line=$(grep -m1 '^E:' "$cache/fetch.log" || tail -1 "$cache/fetch.log")
    pieces "$1" "${apt[@]}" >>"$cache/fetch.log" 2>&1 ||
      give_up "apt-get source $package=$source_version failed: $line (log: $cache/fetch.log)"
  }
}

# An archive that lost a source package's description may still have its two parts. Their
# checksums are in its signed index: what has them is the source, wherever it was found.
pieces() { # into the folder $1, with apt as in the other arguments
  local into=$1 helper=/usr/lib/apt/apt-helper uri file sum archive found tree=$1/$package-$upstream
  shift
  mkdir -p "$tree"
  "$@" --print-uris source --only-source "$package=$source_version" >"$into/uris" || return 1
  grep "^'" "$into/uris" >"$into/parts" || return 1
  while read -r uri file _ sum; do
    [ "${file%.dsc}" = "$file" ] || continue
    found=
    for uri in "${uri//\'/}" $(apt-get indextargets \
      --format "\$(REPO_URI)pool/main/${package:0:1}/$package/$file" | sort -u); do
      "$helper" download-file "$uri" "$into/$file" "$sum" && found=$file && break
    done
    [ -n "$found" ] || return 1
    case $file in
      *.orig.tar.*) tar -xf "$into/$file" --strip-components=1 -C "$tree" ;;
      *.debian.tar.*) tar -xf "$into/$file" -C "$tree" ;;
      *) return 1 ;;
    esac
  done <"$into/parts"
  [ -f "$tree/debian/patches/series" ] || return 1
  grep -v '^#' "$tree/debian/patches/series" | while read -r archive _; do
    [ -z "$archive" ] || patch -d "$tree" -p1 --quiet --batch <"$tree/debian/patches/$archive" || return 1
  done
}

if [ ! -f "$tree/.configured" ]; then
  draft=$(mktemp -d "$cache/.draft-XXXXXX")
  trap 'rm -rf "$draft"' EXIT
  fetch "$draft"
  unpacked=$(find "$draft" -maxdepth 1 -type d -name "$package-*")
  [ "$(sed -n 's/^  Version:[[:space:]]*//p' "$unpacked/META")" = "$upstream" ] ||
    give_up "the fetched source is not of $upstream: see $unpacked/META"
  say "configuring it, about half a minute (log: $cache/configure.log)"
  (cd "$unpacked" && ./configure --quiet --prefix=/usr --sysconfdir=/etc/slurm --disable-debug \
    --enable-multiple-slurmd --without-munge --disable-dependency-tracking) \
    >"$cache/configure.log" 2>&1 || give_up "./configure failed: $(tail -1 "$cache/configure.log")"
  touch "$unpacked/.configured"
  rm -rf "$tree"
  mv "$unpacked" "$tree"
fi

# --- the plugin ----------------------------------------------------------------------------------
say "building the wrapper for $package $version"
mkdir -p "$folder"
fresh=$(mktemp "$folder/.select-XXXXXX")
# Its own SONAME and a hard dependency: the loader must take the stock object for another one.
# Every sbatch loads it, so that it has two segments and nothing to be bound before it is used.
gcc -std=gnu11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror \
  -fPIC -shared -nostartfiles -Wl,-z,lazy -Wl,-z,noseparate-code -Wl,-z,norelro -Wl,-Bsymbolic \
  -I"$tree" -I"$sources" "-DSTOCK_BUILD_ID=\"$build_id\"" "$sources"/*.c -o "$fresh" \
  -Wl,-soname,slipstream_select_cons_tres.so \
  -Wl,--no-as-needed "$stock" -Wl,-rpath,"$(dirname "$stock")" -ldl || {
  rm -f "$fresh"
  give_up "it does not compile against $package $source_version (see the lines above)"
}
chmod 755 "$fresh"
mv "$fresh" "$folder/select_cons_tres.so"
dirname "$stock" >"$folder/.stock"
printf '%s\n' "$digest" >"$folder/.digest"
printf '%s\n' "$folder"
