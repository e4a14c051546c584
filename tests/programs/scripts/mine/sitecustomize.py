# SPDX-License-Identifier: Apache-2.0
"""A sitecustomize of the user's, first on PYTHONPATH: Python runs this one and no other."""
