"""Builds ValidatingAdmissionPolicies from rules in CEL. Pure.

A policy of this module rejects requests (403) that break one of its rules, and fails closed. It
matches only the resources and operations that its callers name. The API server evaluates its
``conditions`` first, so that requests of other users cost almost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.rbac.permissions import Permission
from sync.kube.api_resources import VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS
from translators.object_accessors import Object

#: The subresources that API servers admit as CONNECT, whatever the HTTP method.
CONNECTED = frozenset({"exec", "attach", "portforward", "proxy"})
_OPERATIONS = {"create": "CREATE", "patch": "UPDATE", "delete": "DELETE"}

#: CEL: the resource of the request, with its subresource: ``pods/status``.
PLACE = (
    "request.resource.resource + (request.?subResource.orValue('') == '' ? '' : "
    "'/' + request.subResource)"
)
#: CEL: the object before the request; a created one as it will be. Untyped, since one policy
#: matches several kinds.
BEFORE = "request.operation == 'CREATE' ? dyn(object) : dyn(oldObject)"
#: CEL: the object after the request; a deleted one as it was.
AFTER = "request.operation == 'DELETE' ? dyn(oldObject) : dyn(object)"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that every matching request has to meet."""

    expression: str
    message: str


@dataclass(frozen=True, slots=True)
class Target:
    """Operations on one resource or subresource that a policy decides."""

    group: str
    place: str
    """The resource, with its subresource."""
    operations: tuple[str, ...]


def written_by(permissions: Iterable[Permission]) -> list[Target]:
    """The writes and connections that the permissions allow: admission sees no reads."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for permission in permissions:
        subresource = f"/{permission.subresource}" if permission.subresource else ""
        is_connected = permission.subresource in CONNECTED
        operations = (
            ["CONNECT"]
            if is_connected
            else [_OPERATIONS[verb] for verb in permission.verbs if verb in _OPERATIONS]
        )
        place = (permission.resource.group, f"{permission.resource.plural}{subresource}")
        if operations:
            found.setdefault(place, {}).update(dict.fromkeys(operations))
    return [Target(*place, tuple(sorted(operations))) for place, operations in found.items()]


def cel_list(items: Iterable[str]) -> str:
    """CEL: a list of strings, none of which contains a quote. It is JSON, too."""
    return json.dumps(list(items))


def is_user(user: str) -> dict[str, str]:
    """The condition that the request is one of this user, the cheapest that there is."""
    return {"is-of-the-account": f"request.userInfo.username == '{user}'"}


def policy_objects(
    metadata: Object,
    targets: Sequence[Target],
    rules: Sequence[Rule],
    *,
    conditions: Mapping[str, str],
    variables: Mapping[str, str],
    per_pod: bool = False,
) -> list[Object]:
    """The policy and its binding. With ``per_pod`` each rule has to hold for every pod of the
    request's namespace, as ``params``."""
    name = metadata["name"]
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": _resource_rules(targets)},
        "matchConditions": _named(conditions),
        "variables": _named(variables),
        "validations": [
            {"expression": it.expression, "message": it.message, "reason": "Forbidden"}
            for it in rules
        ],
    }
    binding: Object = {"policyName": name, "validationActions": ["Deny"]}
    if per_pod:
        spec["paramKind"] = {"apiVersion": "v1", "kind": "Pod"}
        binding["paramRef"] = {"selector": {}, "parameterNotFoundAction": "Allow"}
    return [
        VALIDATING_POLICIES.manifest(dict(metadata), spec=spec),
        VALIDATING_POLICY_BINDINGS.manifest(
            {key: value for key, value in metadata.items() if key != "annotations"}, spec=binding
        ),
    ]


def _named(expressions: Mapping[str, str]) -> list[Object]:
    return [{"name": name, "expression": it} for name, it in expressions.items()]


def _resource_rules(targets: Sequence[Target]) -> list[Object]:
    """One rule for all resources of a group that have the same operations."""
    found: dict[tuple[str, tuple[str, ...]], Object] = {}
    for it in targets:
        rule: Object = {
            "apiGroups": [it.group],
            "apiVersions": ["*"],
            "operations": list(it.operations),
            "resources": [],
        }
        found.setdefault((it.group, it.operations), rule)["resources"].append(it.place)
    return list(found.values())
