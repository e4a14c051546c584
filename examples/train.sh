#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A batch job that trains on one GPU. What follows the script's name goes to train.py:
#
#     sbatch train.sh --model cnn --minibatches 2000 --save cnn.pt --resume
#
# With --save and --resume a requeued job goes on where SIGTERM ended it, in the same log.
# PYTHON=… names another interpreter than the python3 on PATH.
#SBATCH --job-name=train
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# Slurm runs a copy of this script, so its own path does not tell where train.py is.
for folder in . examples; do
  if [[ -f $folder/train.py ]]; then
    # exec: signals of Slurm then reach the trainer, not a shell that waits for it.
    exec "${PYTHON:-python3}" "$folder/train.py" "$@"
  fi
done
echo "error: no train.py in $PWD: submit from the folder of the examples or from the one above" >&2
exit 1
