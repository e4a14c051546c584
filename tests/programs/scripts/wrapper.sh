#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A user's wrapper around python: another folder, limits, variables, a pipe for the output.
set -euo pipefail
cd "$(dirname "$0")"
ulimit -c 0
env OMP_NUM_THREADS=1 nice -n 1 stdbuf -oL "$@" 2>&1 | sed -u 's/^/| /; s/^| outcome/outcome/'
