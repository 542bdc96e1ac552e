"""The ServiceAccounts of the tests' bridges, with the permissions that `bridge rbac` prints.

Home's namespaces are bound one by one, as by a user. Tests themselves act as an administrator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import yaml

from bridge.rbac.rbac_manifests import Account, HomePermissions, RemotePermissions
from e2e import bridge_process
from e2e.clusters.cluster import Cluster

OURS = Account()
#: The union of the permissions that the tests' joins need, and the arguments that print them.
HOME = HomePermissions(serving="csr", network="auto", leave=True)
REMOTE = RemotePermissions(metrics="auto")
_HOME = ("home", "--serving-certificate", "csr", "--network", "auto", "--leave")
REMOTE_ARGUMENTS = ("remote", "--metrics", "auto")
#: Options of `kubectl create token`: it is valid for longer than any test run.
_LONG_LIVED = ("--duration=24h",)
#: For the shortest time that an API server accepts.
SHORT_LIVED = ("--duration=10m",)


def at_home(home: Cluster, folder: Path) -> Cluster:
    """A handle of home for the bridge's account; its kubeconfig is in ``folder``."""
    return granted(home, folder, *_HOME)


def in_remote(remote: Cluster, folder: Path) -> Cluster:
    """A handle of the remote for the bridge's account."""
    return granted(remote, folder, *REMOTE_ARGUMENTS)


def bind(home: Cluster, *namespaces: str) -> None:
    """Allows pods of these namespaces to run in the remote."""
    home.kubectl("apply", "-f", "-", input=_printed("namespace", *namespaces))


def granted(
    cluster: Cluster,
    folder: Path,
    *args: str,
    account: Account = OURS,
    token_options: Sequence[str] = _LONG_LIVED,
) -> Cluster:
    """A handle for an account with the permissions that `bridge rbac ARGS` prints."""
    text = _printed(*args, "--account", str(account))
    cluster.kubectl("apply", "-f", "-", input=text)
    command = ("create", "token", account.name, "-n", account.namespace)
    token = cluster.kubectl(*command, *token_options).stdout.strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / f"{cluster.name}-{account.name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return dataclasses.replace(cluster, kubeconfig=path)


def take_away(remote: Cluster, account: Account) -> None:
    """Deletes an account in the remote, and its roles."""
    for role in (account.role("remote"), account.role("remote-contents")):
        for kind in ("clusterrolebinding", "clusterrole"):
            remote.kubectl("delete", kind, role, "--ignore-not-found")
    for role, namespace in (("remote", "kube-node-lease"), ("own-token", account.namespace)):
        for kind in ("rolebinding", "role"):
            command = ("delete", kind, account.role(role), "-n", namespace)
            remote.kubectl(*command, "--ignore-not-found")
    command = ("delete", "serviceaccount", account.name, "-n", account.namespace)
    remote.kubectl(*command, "--ignore-not-found")


def _printed(*args: str) -> str:
    done = bridge_process.run("rbac", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout
