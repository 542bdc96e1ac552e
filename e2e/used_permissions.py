"""Reports the permissions that the tests' bridges used, from the API servers' audit logs.

    python -m e2e.used_permissions        for the running clusters, since their start

Prints a table of each permission with the number of its uses, then requests that RBAC or an
admission policy rejected, and requests that no permission in the tables covers. Exit code 1 if a
permission is unused, or one of the other lists is not empty. The clusters are those of
CLUSTER_BRIDGE_E2E_PREFIX and of pytest-xdist's workers that keep an audit log (kind clusters do if
root starts them). A test run checks its own clusters at the end (`e2e.conftest`).

Only requests with the bridge's user agent and the credential of a service account count. Requests
to the home cluster for namespaces that begin with `UNBOUND` are ignored: there tests remove
permissions; so are those of accounts that begin with `OTHER_VERSIONS`: the tables have the
permissions of this version.
"""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bridge.rbac import permissions
from bridge.rbac.permissions import ALL_RESOURCES, Permission
from e2e import service_accounts
from e2e.bench.pods.audit_log import BRIDGE, Request, Requests
from e2e.clusters import find
from e2e.clusters.pytest_fixture import settings_from_environment
from sync.kube.api_resources import DEPLOYMENTS

#: Prefix of home namespaces whose permissions a test changes.
UNBOUND = "unbound-"
#: Prefix of accounts with which a test also runs another version, which may do everything.
OTHER_VERSIONS = "other-versions-"
_ACCOUNTS = "system:serviceaccount:"
#: Reviews of the caller's own permissions, which every user may create.
_FREE = frozenset({"selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews"})

#: The account of an installed webhook, and the suffix of its name.
WEBHOOK, _WEBHOOKS = "webhook", "-offload"
#: An account that acts in place of the node: that of an installed bridge, or of a test. Only what
#: it has beyond the table of ``home`` must be used.
IN_PLACE = "home, in place of the node"
#: An account of the remote that works in prepared namespaces. Of these only what it has beyond the
#: table of ``remote`` must be used.
PREPARED = "remote, in prepared namespaces"
#: Permissions of the account of a remote that leaves, in the chart, for its own Deployment
#: (``templates/_leave.tpl``).
LEAVING = (
    Permission(DEPLOYMENTS, ("get",)),
    Permission(DEPLOYMENTS, ("patch",), subresource="scale"),
)
#: The permissions of each side's accounts, and those of the webhook at home. No request uses the
#: ownership: a policy asks for it.
TABLES: Mapping[str, tuple[Permission, ...]] = {
    "home": (
        *service_accounts.HOME.cluster_level,
        *service_accounts.HOME.per_namespace,
    ),
    IN_PLACE: (
        *service_accounts.IN_PLACE_OF_NODE.cluster_level,
        *service_accounts.IN_PLACE_OF_NODE.per_namespace,
        *permissions.for_state_secret(),
        *LEAVING,
    ),
    "remote": tuple(
        it
        for it in (
            *service_accounts.REMOTE.cluster_level,
            *service_accounts.REMOTE.namespace_contents,
            *permissions.for_own_token(),
        )
        if it not in permissions.REMOTE_OWNERSHIP
    ),
    PREPARED: (
        *permissions.REMOTE_NAMESPACE,
        *permissions.REMOTE_NAMESPACE_LEAVE,
        *permissions.REMOTE_METRICS["api"],
        *permissions.for_remote_storage(),
        *permissions.for_remote_snapshots(),
        *(it for each in permissions.REMOTE_CLUSTER_READS.values() for it in each),
        *permissions.REMOTE_CLAIM,
        *permissions.REMOTE_LEAVE,
        *permissions.for_own_token(),
    ),
    WEBHOOK: permissions.for_webhook(),
}
#: Tables of accounts that need not use what another table has, which its accounts use.
_SHARED = {IN_PLACE: "home", PREPARED: "remote"}


@dataclass(frozen=True, slots=True)
class Granted:
    """One verb of one permission of one side."""

    side: str
    permission: Permission
    verb: str

    def __str__(self) -> str:
        permission = self.permission
        sub = f"/{permission.subresource}" if permission.subresource else ""
        where = f" in {permission.namespace}" if permission.namespace else ""
        name = f" {'|'.join(permission.names)}" if permission.names else ""
        return f"{self.side}: {self.verb} {permission.resource}{sub}{name}{where}"

    def covers(self, request: Request) -> bool:
        """Whether it allows the request."""
        permission = self.permission
        plural = permission.resource.plural + (
            f"/{permission.subresource}" if permission.subresource else ""
        )
        return (
            self.verb == request.verb
            and (
                permission.resource == ALL_RESOURCES
                or (permission.resource.group, plural) == (request.group, request.resource)
            )
            and permission.namespace in ("", request.namespace)
            and (
                not permission.names
                or any(fnmatch.fnmatchcase(request.name, it) for it in permission.names)
            )
        )


#: Optional reads: the bridge first asks whether its credential may. No table grants them, and a
#: test's administrator may.
_SHOWN = [
    Granted("home", permission, verb)
    for permission in (
        *permissions.HOME_RANGES,
        *permissions.HOME_DAEMON_SETS,
        *(replace(it, names=()) for it in permissions.HOME_KUBELET_PROXY),
        *permissions.HOME_APPROVAL,
    )
    for verb in permission.verbs
]


@dataclass(slots=True)
class Report:
    """The uses of permissions in the logs."""

    used: Counter[str] = field(default_factory=Counter)
    """Uses by the name of the grant."""
    refused: Counter[str] = field(default_factory=Counter)
    undeclared: Counter[str] = field(default_factory=Counter)
    """Answered requests that no permission in the tables allows."""

    @property
    def unused(self) -> list[Granted]:
        """The grants without a use. The records of other nodes' claims have names that a grant for
        any node covers too."""
        return [
            grant
            for grant in all_grants()
            if not self.used[str(grant)]
            and not _is_shared(grant)
            and grant.permission not in permissions.HOME_OTHER_CLAIMS
        ]

    def add(self, other: Mapping[str, Mapping[str, int]]) -> None:
        """Adds another report in the form of `as_json`."""
        self.used.update(other["used"])
        self.refused.update(other["refused"])
        self.undeclared.update(other["undeclared"])

    def as_json(self) -> dict[str, dict[str, int]]:
        """The report in plain types."""
        return {
            "used": dict(self.used),
            "refused": dict(self.refused),
            "undeclared": dict(self.undeclared),
        }

    def lines(self) -> Iterator[str]:
        """The table."""
        for granted in all_grants():
            yield f"{self.used[str(granted)] or 'unused':>8}  {granted}"
        yield from self.problems()

    def problems(self) -> Iterator[str]:
        """Rejected and undeclared requests."""
        for title, found in (("refused", self.refused), ("undeclared", self.undeclared)):
            for what, count in sorted(found.items()):
                yield f"{count:>8}  {title}: {what}"


def all_grants() -> Iterator[Granted]:
    """All grants of all tables."""
    for side, granted in TABLES.items():
        for permission in granted:
            for verb in permission.verbs:
                yield Granted(side, permission, verb)


def report(logs: Mapping[str, Requests]) -> Report:
    """Counts the requests in the logs of ``home`` and ``remote``."""
    found, granted = Report(), list(all_grants())
    for side, requests in logs.items():
        for request in requests.all():
            if not _counts(side, request):
                continue
            who = _table(side, request.user)
            description = f"{who}: {request} in {request.namespace or 'all namespaces'}"
            uses = [it for it in granted if it.side == who and it.covers(request)]
            if request.denied_by_policy:
                found.refused[f"{description}, by an admission policy"] += 1
                continue
            if request.forbidden:
                # A server that has just started rejects granted requests until it has read its
                # roles, and a test may remove permissions.
                found.refused.update([] if uses else [description])
                continue
            # A request that another permission covers is no use of the one for all resources, nor
            # of one for all names.
            exact = [it for it in uses if it.permission.resource != ALL_RESOURCES]
            named = [it for it in exact if it.permission.names]
            found.used.update(map(str, named or exact or uses))
            if not uses and not any(it.side == side and it.covers(request) for it in _SHOWN):
                found.undeclared[description] += 1
    return found


def _table(side: str, user: str) -> str:
    """The key of the account's table."""
    if user.endswith(_WEBHOOKS):
        return WEBHOOK
    name = user.rpartition(":")[2]
    # The account of an installation has the installation's name.
    in_place = name.endswith(service_accounts.IN_PLACE) or name.startswith("cluster-bridge-")
    if side == "remote" and name.endswith(service_accounts.PREPARED):
        return PREPARED
    return IN_PLACE if side == "home" and in_place else side


def _is_shared(granted: Granted) -> bool:
    other = _SHARED.get(granted.side)
    return other is not None and granted.permission in TABLES[other]


def _counts(side: str, request: Request) -> bool:
    plural = request.resource.partition("/")[0]
    return (
        request.user.startswith(_ACCOUNTS)
        and not request.resource.startswith("/")
        and plural not in _FREE
        and not request.user.rpartition(":")[2].startswith(OTHER_VERSIONS)
        and not (side == "home" and request.namespace.startswith(UNBOUND))
    )


def main() -> int:
    """Runs the command."""
    settings, found, any_log = settings_from_environment(), Report(), False
    for worker in ("", *map(str, range(10))):
        clusters = find(replace(settings, prefix=f"{settings.prefix}{worker}"))
        logs = {
            side: Requests(log, BRIDGE, whole=True)
            for side in TABLES
            if side in clusters and (log := clusters[side].audit_log) is not None
        }
        any_log |= bool(logs)
        found.add(report(logs).as_json())
    if not any_log:
        print("error: no cluster with an audit log is up; start some", file=sys.stderr)
        return 1
    _say(found.lines())
    return 1 if found.unused or found.refused or found.undeclared else 0


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


if __name__ == "__main__":
    raise SystemExit(main())
