# SPDX-License-Identifier: Apache-2.0
"""The only room a user's training process loads; standard library only, never imports torch."""
