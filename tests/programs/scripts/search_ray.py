# SPDX-License-Identifier: Apache-2.0
"""Ray Tune: each trial in a worker process of Ray's."""

import os
import sys
import tempfile

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
import ray
from ray import tune

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.dirname(os.path.abspath(__file__))


def trainable(config):
    """A training of its own."""
    sys.path.insert(0, FOLDER)
    import torch
    from torch.utils.data import DataLoader

    import work

    model = work.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    steps = 0
    for _epoch in range(2):
        for inputs, targets in DataLoader(work.Samples(), work.BATCH):
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            steps += 1
    tune.report({"loss": loss.item(), "steps": steps, "bits": loss.item().hex()})


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            address="local",
        )
        tuner = tune.Tuner(
            trainable,
            param_space={"lr": tune.grid_search([1e-2, 1e-3])},
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        found = list(tuner.fit())
        ray.shutdown()
    import torch

    import work

    losses = {str(one.config["lr"]): torch.tensor(one.metrics["loss"]) for one in found}
    work.told(sum(one.metrics["steps"] for one in found), losses)
