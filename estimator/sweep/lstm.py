# SPDX-License-Identifier: Apache-2.0
"""Train the sweep's lstm: a program of its own, as people have them, so a family of its own."""

from sweep.training import main

if __name__ == "__main__":
    main("lstm")
