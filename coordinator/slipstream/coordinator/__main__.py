# SPDX-License-Identifier: Apache-2.0
"""`python -m slipstream.coordinator`: one per node, as root."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from slipstream.coordinator import service, settings


def main() -> int:
    """Run until told to stop."""
    told = settings.read(None, os.environ)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(service.run(told))
    except (service.ServiceError, OSError) as error:
        sys.stderr.write(f"slipstream coordinator: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
