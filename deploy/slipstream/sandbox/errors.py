# SPDX-License-Identifier: Apache-2.0
"""The one exception of the sandbox: a sentence for the person who typed the command."""


class SandboxError(Exception):
    """What went wrong and what to do about it, in words for the user."""
