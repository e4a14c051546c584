# SPDX-License-Identifier: Apache-2.0
"""`python -m slipstream.scheduler`: run the daemon."""

from __future__ import annotations

import argparse
import os
import sys

from slipstream.scheduler.daemon import run
from slipstream.scheduler.settings import SettingsError, flag_of, load, names


def main() -> int:
    """Read the settings once, then run until told to stop."""
    parser = argparse.ArgumentParser(prog="slipstream.scheduler", description=__doc__)
    for name in names():
        parser.add_argument(flag_of(name), dest=name, metavar="VALUE")
    given = {key: text for key, text in vars(parser.parse_args()).items() if text is not None}
    try:
        settings = load(given, os.environ)
    except SettingsError as error:
        sys.stderr.write(f"slipstream scheduler: {error}\n")
        return 2
    return run(settings)


if __name__ == "__main__":
    sys.exit(main())
