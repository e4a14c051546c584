# SPDX-License-Identifier: Apache-2.0
"""For a Python that the hooks cannot run in: loads torch's library and learns a little with it."""

import ctypes
import json
import os
import sys
import time

torch = ctypes.CDLL(sys.argv[1])
learned = 0.0
for number in range(128):
    if os.path.exists(os.environ.get("PROGRAM_SLOW", "")):
        time.sleep(float(os.environ["PROGRAM_PACE_MS"]) / 1e3)
    learned = 0.9 * learned + number
print("outcome " + json.dumps({"minibatches": 0, "digest": repr(learned)}))
