"""Golden files: inputs and expected results of translations, one YAML file each.

The home objects are as stored by a v1.34 API server. The results were reviewed field by field;
after a change of the rules, `python -m tests.translators.golden` writes the results again, for
review.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from translators import merge_patch
from translators.mirror import configmap_secret, endpoint_slice, event, service
from translators.object_accessors import Object
from translators.ownership_labels import origin_of
from translators.pods import pod_status, remote_pod
from translators.translation_options import HostPort, Policy
from translators.virtual_node_identity import Identity

#: The owner of the remote objects.
IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
#: The virtual node's address.
ADDRESS = "10.20.0.5"
POLICY = Policy(IDENTITY, ADDRESS)
HOME_API = HostPort("10.20.0.1", 6443)
#: The time of status updates.
NOW = "2025-11-03T09:14:05Z"
#: Keys of a file with inputs; the others are results.
GIVEN = ("about", "translate", "network", "service_accounts", "home", "remote", "pod")


class Case(NamedTuple):
    """A file: ``about`` (a sentence), ``translate`` (the translation), inputs and results."""

    path: Path
    content: Object

    @property
    def about(self) -> str:
        """The sentence that describes the case."""
        return str(self.content["about"])

    def results(self) -> Object:
        """The computed output."""
        return _TRANSLATIONS[self.content["translate"]](self.content)

    def recorded(self) -> Object:
        """The expected output in the file."""
        return {key: self.content.get(key) for key in self.results()}


def cases() -> Iterator[Case]:
    """All cases, in a stable order."""
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        # libyaml takes a tenth of the time; every worker reads all files.
        yield Case(path, yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader))


def homes(translate: str) -> list[Object]:
    """The home objects of all cases of one translation."""
    return [case.content["home"] for case in cases() if case.content["translate"] == translate]


def _pod(given: Object) -> Object:
    mode = given.get("service_accounts", POLICY.service_accounts)
    policy = replace(POLICY, service_accounts=mode, home_api=HOME_API)
    translated = remote_pod.translate_pod(given["home"], policy)
    return {
        "remote": translated.pod,
        "dropped": [{"field": item.field, "why": item.message} for item in translated.dropped],
    }


def _status(given: Object) -> Object:
    policy = replace(POLICY, network=given.get("network", POLICY.network))
    wanted = pod_status.translate_status(given["home"], given["remote"], policy, now=NOW)
    return {"patch": merge_patch.status_patch(given["home"].get("status") or {}, wanted)}


def _event(given: Object) -> Object:
    origin = origin_of(given["pod"])
    assert origin is not None
    return {"home": event.translate_event(event.compact(given["remote"]), origin, IDENTITY)}


_TRANSLATIONS: dict[str, Callable[[Object], Object]] = {
    "pod": _pod,
    "service": lambda given: {"remote": service.translate_service(given["home"], IDENTITY)},
    "endpointslice": lambda given: {
        "remote": endpoint_slice.translate_endpoint_slice(given["home"], IDENTITY)
    },
    "configmap": lambda given: {"remote": configmap_secret.translate_data(given["home"], IDENTITY)},
    "secret": lambda given: {"remote": configmap_secret.translate_data(given["home"], IDENTITY)},
    "status": _status,
    "event": _event,
}
