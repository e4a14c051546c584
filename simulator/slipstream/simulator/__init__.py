# SPDX-License-Identifier: Apache-2.0
"""Real traces in virtual time: the policies of core and their rivals on one model of a cluster."""
