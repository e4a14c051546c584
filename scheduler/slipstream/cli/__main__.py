# SPDX-License-Identifier: Apache-2.0
"""`python -m slipstream.cli`, the same as `slipstream`."""

from slipstream.cli import main

main(prog_name="slipstream")
