#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A batch job that trains on as many GPUs as it has. What follows the script's name goes to elastic.py:
#
#     sbatch --slip-class=shared --slip-elastic=1-4 elastic.sh --model cnn --minibatches 5000
#
# It asks for one GPU. Slipstream may let it go on with up to four while nobody else wants them, and
# takes those back when somebody does: each time the job is requeued, and this script runs again.
# So the number of processes is read from SLURM_GPUS_ON_NODE, never written down.
# CPUs and memory stay as they were asked for: ask for what the largest size needs.
# PYTHON=… names another interpreter than the python3 on PATH.
#SBATCH --job-name=elastic
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# Slurm runs a copy of this script, so its own path does not tell where elastic.py is.
for folder in . examples; do
  if [[ -f $folder/elastic.py ]]; then
    exec "${PYTHON:-python3}" -m torch.distributed.run --standalone \
      --nproc-per-node="$SLURM_GPUS_ON_NODE" "$folder/elastic.py" "$@"
  fi
done
echo "error: no elastic.py in $PWD: submit from the folder of the examples or from above it" >&2
exit 1
