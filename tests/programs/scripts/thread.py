# SPDX-License-Identifier: Apache-2.0
"""Imports torch and trains in a thread, as services do."""

import threading

trained = []


def train():
    """All of it."""
    import plain

    trained.append(plain.steps)


thread = threading.Thread(target=train)
thread.start()
thread.join()
assert trained
