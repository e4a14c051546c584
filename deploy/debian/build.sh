#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the Debian package, for the Debian and for exactly the Slurm of the host it runs on.
#
#   build.sh [FOLDER]      default: build/deb of this repository
#
# The package holds a Python environment of its own (no torch), the SPANK plugin, the Lua modules, the
# select wrapper, units, manual pages and completions. Wheels come from wherever pip is set up to
# look. The last line printed is the package's file.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-$root/build/deb}
home=/usr/lib/slipstream
export LC_ALL=C.UTF-8 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
say() { printf 'slipstream deb: %s\n' "$*" >&2; }
give_up() { say "$*"; exit 1; }

for tool in dpkg-deb:dpkg gcc:gcc /usr/bin/python3:python3-venv gzip:gzip; do
  command -v "${tool%%:*}" >/dev/null || give_up "${tool%%:*} is missing: apt-get install ${tool##*:}"
done
[ -e /usr/include/slurm/spank.h ] || give_up "Slurm's headers are missing: apt-get install libslurm-dev"
python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
slurm=$(sed -n 's/^#define SLURM_VERSION_NUMBER 0x\(..\)\(..\).*/\1 \2/p' \
  /usr/include/slurm/slurm_version.h)
[ -n "$slurm" ] || give_up "/usr/include/slurm/slurm_version.h does not tell a version"
major=$((16#${slurm% *})) minor=$((16#${slurm#* }))
release=$(printf '%d.%02d' "$major" "$minor") after=$(printf '%d.%02d' "$major" $((minor + 1)))
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/pyproject.toml")+slurm$release
arch=$(dpkg --print-architecture)

work=$(mktemp -d "${TMPDIR:-/tmp}/slipstream-deb-XXXXXX")
trap 'rm -rf "$work"' EXIT
stage=$work/stage
lib=$stage$home
mkdir -p "$lib" "$stage/DEBIAN" "$out"
chmod 755 "$work" "$stage"

# --- the Python environment ----------------------------------------------------------------------
say "the environment, Python $python (log: $out/build.log)"
site=$lib/venv/lib/python$python/site-packages
{
  /usr/bin/python3 -m venv "$work/tools"
  "$work/tools/bin/pip" wheel --no-deps --wheel-dir "$work/wheels" "$root/torch_hooks" "$root"
  /usr/bin/python3 -m venv --without-pip "$lib/venv"
  "$work/tools/bin/pip" --python "$lib/venv/bin/python3" install --no-compile \
    --find-links "$work/wheels" slurm-slipstream
} >"$out/build.log" 2>&1 || { tail -20 "$out/build.log" >&2; give_up "pip failed"; }
"$lib/venv/bin/python3" -m slipstream.torch_hooks.native build >>"$out/build.log"
"$lib/venv/bin/python3" -m slipstream.estimator.native build >>"$out/build.log"
# What only a developer of those packages needs is a third of them.
find "$site" -type d \( -name tests -o -name test \) -not -path "$site/slipstream/*" -prune \
  -exec rm -rf {} +
rm -rf "$lib/venv/include" "$lib/venv/share" "$lib"/venv/bin/[Aa]ctivate*
find "$lib/venv/bin" -type f ! -name slipstream -delete
sed -i "1s|$stage||" "$lib/venv/bin/slipstream"
sed -i "s|$stage||g; /^command/d" "$lib/venv/pyvenv.cfg"
find "$site" -name direct_url.json -delete # it names the folder this was built in
# Compiled here: at run time nothing is written beside the package's own files.
"$lib/venv/bin/python3" -m compileall -q -s "$stage" --invalidation-mode unchecked-hash "$site" \
  >>"$out/build.log"

# --- what runs inside Slurm ----------------------------------------------------------------------
say "the plugins, for Slurm $release"
spank=$("$lib/venv/bin/python3" -c 'import sys, pathlib, slipstream.sandbox.plugins as plugins
print(plugins.spank_library(pathlib.Path(sys.argv[1])))' "$work/spank")
install -m 644 "$spank" "$lib/slipstream.so"
mkdir -p "$stage/usr/share/slipstream/lua"
(cd "$root/slurm_plugin/lua" && find . -name '*.lua' -exec install -D -m 644 '{}' \
  "$stage/usr/share/slipstream/lua/{}" \;)
if select=$("$root/deploy/setup/select_plugin.sh" "$work/select"); then
  mkdir -p "$lib/select"
  cp -a "$select" "$lib/select/"
else
  say "without the select wrapper: advice is carried out by soft hold"
fi

# --- units, pages, completions -------------------------------------------------------------------
install -d "$stage/usr/lib/systemd/system" "$stage/etc/default" "$stage/usr/bin" \
  "$stage/usr/share/man/man1" "$stage/usr/share/man/man8" "$stage/usr/share/doc/slurm-slipstream" \
  "$stage/usr/share/bash-completion/completions" "$stage/usr/share/zsh/vendor-completions"
install -m 644 "$root"/deploy/systemd/*.service "$stage/usr/lib/systemd/system/"
install -m 644 "$root/deploy/systemd/slipstream.default" "$stage/etc/default/slipstream"
ln -s ../lib/slipstream/venv/bin/slipstream "$stage/usr/bin/slipstream"
"$lib/venv/bin/python3" "$root/deploy/manual/pages.py" "$stage/usr/share/man" >>"$out/build.log"
"$lib/venv/bin/python3" "$root/deploy/manual/completions.py" bash \
  >"$stage/usr/share/bash-completion/completions/slipstream"
"$lib/venv/bin/python3" "$root/deploy/manual/completions.py" zsh \
  >"$stage/usr/share/zsh/vendor-completions/_slipstream"
install -m 644 "$root"/deploy/manual/*.8 "$stage/usr/share/man/man8/"
gzip -9n "$stage"/usr/share/man/man?/*
install -m 644 "$here/copyright" "$stage/usr/share/doc/slurm-slipstream/copyright"
mkdir -p "$lib/wheels"
install -m 644 "$work"/wheels/slurm_slipstream_hooks-*.whl "$lib/wheels/"

# --- the package ---------------------------------------------------------------------------------
find "$stage" -type d -exec chmod 755 {} +
install -m 755 "$here/prerm" "$here/postrm" "$here/postinst" "$stage/DEBIAN/"
printf '/etc/default/slipstream\n' >"$stage/DEBIAN/conffiles"
cat >"$stage/DEBIAN/control" <<CONTROL
Package: slurm-slipstream
Version: $version
Architecture: $arch
Maintainer: Slipstream <slipstream@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f1)
Depends: python3 (>= $python), python3 (<< ${python%.*}.$((${python#*.} + 1))), libc6, libmunge2,
 slurm-client (>= $release), slurm-client (<< $after~)
Recommends: lua-socket, lua-posix, munge
Section: admin
Priority: optional
Description: GPU sharing for deep learning on Slurm
 Guest jobs use what the owners of GPUs leave idle, take turns and move between nodes.
 Installing this package changes nothing in Slurm: 'slipstream setup' shows what would be
 changed, 'slipstream setup --apply' does it, and removing the package takes it back.
CONTROL
file=$out/slurm-slipstream_${version}_$arch.deb
dpkg-deb --root-owner-group -Zxz -z1 --build "$stage" "$file" >>"$out/build.log"
say "$(du -h "$file" | cut -f1) for Slurm $release, Python $python"
printf '%s\n' "$file"
