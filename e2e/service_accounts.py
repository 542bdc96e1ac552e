"""The ServiceAccounts of the tests' bridges, with the permissions that `bridge rbac` prints.

At home each virtual node has an account of its own, which the admission policy confines to that
node. In the remote all share one account; the policies there apply to everyone. Home's namespaces
are bound one by one, as by a user. Tests themselves act as an administrator.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from typer.testing import CliRunner

from bridge.cli.command_table import app
from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import Account, HomePermissions, RemotePermissions
from bridge.rbac.remote_policy import RESERVATION
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, wait_for

OURS = Account()
#: A pattern for the name of any virtual node.
ANY_NODE = "*"
#: The union of the permissions that the tests' joins need, and the arguments that print them.
HOME = HomePermissions([ANY_NODE], network="auto", leave=True, identity="node", storage="provision")
#: The permissions of an account that acts in place of the node, and the arguments.
IN_PLACE_OF_NODE = dataclasses.replace(HOME, identity="service-account")
_IN_PLACE_OF_NODE = ("--home-identity", "service-account")
#: The end of the name of such an account.
IN_PLACE = "-in-place"
REMOTE = RemotePermissions(metrics="auto", storage="provision")
_HOME = ("home", "--network", "auto", "--leave", "--storage", "provision")
REMOTE_ARGUMENTS = ("remote", "--metrics", "auto", "--policy", "--storage", "provision")
#: The end of the name of an account of the remote that works in prepared namespaces.
PREPARED = "-prepared"
#: Options of `kubectl create token`: it is valid for longer than any test run.
_LONG_LIVED = ("--duration=24h",)
#: For the shortest time that an API server accepts.
SHORT_LIVED = ("--duration=10m",)


def of_node(node: str) -> Account:
    """The account at home of a virtual node."""
    return Account(OURS.namespace, node)


def in_prepared(node: str) -> Account:
    """The account in the remote of a virtual node with prepared namespaces."""
    return Account("default", f"{node}{PREPARED}")


def at_home(home: Cluster, folder: Path, node: str) -> Cluster:
    """A handle of the home cluster for the account of this virtual node, whose kubeconfig is in
    ``folder``. `take_away_at_home` removes the account."""
    return granted(home, folder, *_HOME, "--name", node, account=of_node(node))


def in_place_of_node(home: Cluster, folder: Path, node: str) -> Cluster:
    """A handle of the home cluster for an account that acts in place of the virtual node."""
    account = Account(OURS.namespace, f"{node}{IN_PLACE}")
    return granted(home, folder, *_HOME, *_IN_PLACE_OF_NODE, "--name", node, account=account)


def in_remote(remote: Cluster, folder: Path) -> Cluster:
    """A handle of the remote for the bridge's account."""
    return granted(remote, folder, *REMOTE_ARGUMENTS)


def bind(home: Cluster, node: str, *namespaces: str) -> None:
    """Allows pods of these namespaces to run on the virtual node, by the account in `at_home`."""
    account = ("--account", str(of_node(node)))
    home.kubectl("apply", "-f", "-", input=_printed("namespace", *namespaces, *account))


def granted(
    cluster: Cluster,
    folder: Path,
    *args: str,
    account: Account = OURS,
    token_options: Sequence[str] = _LONG_LIVED,
) -> Cluster:
    """A handle for an account with the permissions that `bridge rbac ARGS` prints."""
    text = _printed(*args, "--account", str(account))
    # The leave of another test's bridge may have removed the namespace.
    wait_for(
        lambda: not _is_terminating(cluster, account.namespace),
        f"the deletion of namespace {account.namespace} has ended",
    )
    cluster.kubectl("apply", "-f", "-", input=text)
    return handle_of(cluster, folder, account, token_options)


def handle_of(
    cluster: Cluster,
    folder: Path,
    account: Account,
    token_options: Sequence[str] = _LONG_LIVED,
) -> Cluster:
    """A handle with a new token of an account; its kubeconfig is in ``folder``."""
    command = ("create", "token", account.name, "-n", account.namespace)
    token = cluster.kubectl(*command, *token_options).stdout.strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / f"{cluster.name}-{account.name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return dataclasses.replace(cluster, kubeconfig=path)


def _is_terminating(cluster: Cluster, namespace: str) -> bool:
    path = "jsonpath={.metadata.deletionTimestamp}"
    command = ("get", "namespace", namespace, "--ignore-not-found", "-o", path)
    return bool(cluster.kubectl(*command).stdout)


def take_away_at_home(home: Cluster, node: str) -> None:
    """Deletes the account of `at_home`, its roles and its policies."""
    options = dataclasses.replace(HOME, nodes=[node])
    _delete(home, rbac_manifests.home_objects(options, of_node(node)))


def take_away(remote: Cluster, account: Account) -> None:
    """Deletes an account in the remote, its roles and its policy."""
    objects = rbac_manifests.remote_objects(REMOTE, account, policy=True)
    _delete(remote, [it for it in objects if it["metadata"]["name"] != RESERVATION])


def _delete(cluster: Cluster, objects: Iterable[Json]) -> None:
    """Deletes them except the namespace, which accounts share."""
    items = [it for it in objects if it["kind"] != "Namespace"]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("delete", "-f", "-", "--ignore-not-found", "--wait=false", input=listed)


def _printed(*args: str) -> str:
    """What `bridge rbac ARGS` prints: in this process, since every test needs it, and each start of
    the command takes a second of a processor."""
    done = CliRunner().invoke(app, ["rbac", *args])
    assert done.exit_code == 0, done.output
    return done.stdout
