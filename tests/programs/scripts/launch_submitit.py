# SPDX-License-Identifier: Apache-2.0
"""submitit on the login node: a function becomes a job; the flags are additional parameters."""

import json
import os
import sys

import submitit


def train():
    """What the job does."""
    import plain

    return plain.steps


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder=os.environ["PROGRAM_FOLDER"], cluster="slurm")
    executor.update_parameters(
        timeout_min=20, slurm_additional_parameters=json.loads(os.environ["PROGRAM_FLAGS"])
    )
    job = executor.submit(train)
    print(f"submitted {job.job_id}", flush=True)
    job.result()
    print(job.stdout(), file=sys.stdout, flush=True)
