# SPDX-License-Identifier: Apache-2.0
"""One daemon per node: seats guests on GPUs, gives each process its control block, reports use."""
