# SPDX-License-Identifier: Apache-2.0
"""More PyTorch jobs than GPUs, on a real Slurm cluster: run, watched, measured and plotted."""
