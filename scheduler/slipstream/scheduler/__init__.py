# SPDX-License-Identifier: Apache-2.0
"""The central daemon, a shell around core: watch, journal, decide, enact. See docs/scheduler.md."""
