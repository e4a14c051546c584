# SPDX-License-Identifier: Apache-2.0
"""A package of a user's."""
