# SPDX-License-Identifier: Apache-2.0
"""`make sweep`: short real trainings of many sizes through a sandbox, measured as any job is.

Not part of a wheel: the trainings need torch.
"""
