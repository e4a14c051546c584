# SPDX-License-Identifier: Apache-2.0
"""A database and accounts for a sandbox with `--accounting`: MariaDB's folder, users, tenants."""

from __future__ import annotations

import pwd
import subprocess
from typing import TYPE_CHECKING

from slipstream.sandbox.daemons import program
from slipstream.sandbox.errors import SandboxError
from slipstream.sandbox.plan import ACCOUNTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.sandbox.layout import Layout


def initialise_database(layout: Layout) -> None:
    """Make the empty data folder that MariaDB starts from."""
    layout.database.mkdir()
    _must(
        (
            program("mariadb-install-db", "mariadb-server"),
            "--no-defaults",
            "--user=root",
            f"--datadir={layout.database}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ),
    )


def database_answers(layout: Layout) -> bool:
    """Whether MariaDB takes connections."""
    argv = (*_client(layout), "--execute=SELECT 1")
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def create_database_user(layout: Layout, password: str) -> None:
    """The user slurmdbd logs in as."""
    script = (
        f"CREATE USER IF NOT EXISTS 'slurm'@'%' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'%';\n"
    )
    _must(_client(layout), text=script)


def create_accounts(cluster: str, users: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Register the cluster, the tenants' accounts and who may use them."""
    sacctmgr = (program("sacctmgr", "slurm-client"), "--immediate", "--quiet", "add")
    _must((*sacctmgr, "cluster", cluster), environment)
    for account in ACCOUNTS:
        _must((*sacctmgr, "account", account, "Description=sandbox"), environment)
    accounts = ",".join(ACCOUNTS)
    for user in users:
        _must(
            (*sacctmgr, "user", user, f"Account={accounts}", f"DefaultAccount={ACCOUNTS[0]}"),
            environment,
        )


def user_names(uids: set[int]) -> tuple[str, ...]:
    """The login names behind these uids, those that have one."""
    known = {entry.pw_uid: entry.pw_name for entry in pwd.getpwall()}
    return tuple(sorted(known[uid] for uid in uids if uid in known))


def _client(layout: Layout) -> tuple[str, ...]:
    return (
        program("mariadb", "mariadb-server"),
        "--no-defaults",
        "--user=root",
        f"--socket={layout.run}/mariadb.socket",
    )


def _must(
    argv: tuple[str, ...], environment: Mapping[str, str] | None = None, text: str | None = None
) -> None:
    done = subprocess.run(
        argv, env=environment, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SandboxError(
            f"accounting could not be set up ({' '.join(argv[:4])}…): "
            f"{(done.stderr or done.stdout).strip()}"
        )
