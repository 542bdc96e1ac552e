"""Which rights the tests' bridges used, by the API servers' own audit logs.

    python -m e2e.used_permissions        of the clusters that are up, since they are

A table of each right with how often it was used; then what was refused, and what was asked for
without a right in the tables. Exit code 1 where a right is unused, or one of the others is not
empty. The clusters are those of CLUSTER_BRIDGE_E2E_PREFIX, and of pytest-xdist's workers, and keep
an audit log (kind's do where root starts them). A run of the tests looks at its own at the end
(`e2e.conftest`).

Looked at is what the bridge asked with a credential of a service account: its user agent and the
user's name tell. Requests of namespaces that begin with `UNBOUND` are passed over at home: there a
test takes rights away.
"""

from __future__ import annotations

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

#: How namespaces of home begin whose rights are a test's matter.
UNBOUND = "unbound-"
_ACCOUNTS = "system:serviceaccount:"
#: What every user may ask: what it may itself.
_FREE = frozenset({"selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews"})

#: The account of a webhook in home's cluster, told by how its name ends.
WEBHOOK, _WEBHOOKS = "webhook", "-offload"
#: Of each side: what its account may; and what the webhook's may, at home.
TABLES: Mapping[str, tuple[Permission, ...]] = {
    "home": (*service_accounts.HOME.cluster_level, *service_accounts.HOME.per_namespace),
    "remote": (*service_accounts.REMOTE.cluster_level, *service_accounts.REMOTE.namespace_contents),
    WEBHOOK: permissions.for_webhook(),
}


@dataclass(frozen=True, slots=True)
class Granted:
    """One verb of one right of one side."""

    side: str
    right: Permission
    verb: str

    def __str__(self) -> str:
        right = self.right
        sub = f"/{right.subresource}" if right.subresource else ""
        where = f" in {right.namespace}" if right.namespace else ""
        name = f" {'|'.join(right.names)}" if right.names else ""
        return f"{self.side}: {self.verb} {right.resource}{sub}{name}{where}"

    def covers(self, request: Request) -> bool:
        """Whether it allows the request."""
        right = self.right
        plural = right.resource.plural + (f"/{right.subresource}" if right.subresource else "")
        return (
            self.verb == request.verb
            and (
                right.resource == ALL_RESOURCES
                or (right.resource.group, plural) == (request.group, request.resource)
            )
            and right.namespace in ("", request.namespace)
            and (not right.names or request.name in right.names)
        )


#: What a bridge looks at where its credential may, which it asks first: no table grants it, and a
#: test's administrator may.
_SHOWN = [
    Granted("home", right, verb)
    for right in (*permissions.HOME_RANGES, *permissions.HOME_DAEMON_SETS)
    for verb in right.verbs
]


@dataclass(slots=True)
class Report:
    """What the logs tell."""

    used: Counter[str] = field(default_factory=Counter)
    """By the name of what is granted."""
    refused: Counter[str] = field(default_factory=Counter)
    undeclared: Counter[str] = field(default_factory=Counter)
    """What was answered although no right in the tables allows it."""

    @property
    def unused(self) -> list[Granted]:
        """The rights that nobody used."""
        return [it for it in every() if not self.used[str(it)]]

    def add(self, other: Mapping[str, Mapping[str, int]]) -> None:
        """Adds another, as `as_json` gives it."""
        self.used.update(other["used"])
        self.refused.update(other["refused"])
        self.undeclared.update(other["undeclared"])

    def as_json(self) -> dict[str, dict[str, int]]:
        """It, in plain types."""
        return {
            "used": dict(self.used),
            "refused": dict(self.refused),
            "undeclared": dict(self.undeclared),
        }

    def lines(self) -> Iterator[str]:
        """The table."""
        for granted in every():
            yield f"{self.used[str(granted)] or 'unused':>8}  {granted}"
        yield from self.wrong()

    def wrong(self) -> Iterator[str]:
        """What no test should see."""
        for title, found in (("refused", self.refused), ("undeclared", self.undeclared)):
            for what, count in sorted(found.items()):
                yield f"{count:>8}  {title}: {what}"


def every() -> Iterator[Granted]:
    """All that is granted."""
    for side, rights in TABLES.items():
        for right in rights:
            for verb in right.verbs:
                yield Granted(side, right, verb)


def report(logs: Mapping[str, Requests]) -> Report:
    """What is in the logs of ``home`` and ``remote``."""
    found, granted = Report(), list(every())
    for side, requests in logs.items():
        for request in requests.all():
            if not _counts(side, request):
                continue
            who = WEBHOOK if request.user.endswith(_WEBHOOKS) else side
            told = f"{who}: {request} in {request.namespace or 'all namespaces'}"
            uses = [it for it in granted if it.side == who and it.covers(request)]
            if request.forbidden:
                # What is granted is refused by a server that has just started and has not read its
                # roles yet, and where a test takes rights away.
                found.refused.update([] if uses else [told])
                continue
            # What another right allows does not need that to all kinds.
            exact = [it for it in uses if it.right.resource != ALL_RESOURCES]
            found.used.update(map(str, exact or uses))
            if not uses and not any(it.side == who and it.covers(request) for it in _SHOWN):
                found.undeclared[told] += 1
    return found


def _counts(side: str, request: Request) -> bool:
    plural = request.resource.partition("/")[0]
    return (
        request.user.startswith(_ACCOUNTS)
        and not request.resource.startswith("/")
        and plural not in _FREE
        and not (side == "home" and request.namespace.startswith(UNBOUND))
    )


def main() -> int:
    """The command."""
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
        print("error: there is no cluster with an audit log; start some", file=sys.stderr)
        return 1
    _say(found.lines())
    return 1 if found.unused or found.refused or found.undeclared else 0


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


if __name__ == "__main__":
    raise SystemExit(main())
