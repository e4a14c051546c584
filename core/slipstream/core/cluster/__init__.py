# SPDX-License-Identifier: Apache-2.0
"""The cluster's policies: who sits on which GPU, who waits for whom, who moves. Pure."""
