"""Copies the labels and annotations of a home PVC to its remote PVC, and later changes of them.

The rules for pods decide which keys are passed (`translators.pods.dropped_metadata`). Annotations
in Kubernetes' own domains are not: home's scheduler, binder and provisioner write them, and the
remote's would act on them.

Controllers of the remote write labels and annotations to the same PVC. `ANNOTATION_FOLLOWED`
records each key that the bridge wrote, with a digest of the value:

| key in the remote                    | at home            | action                         |
|--------------------------------------|--------------------|--------------------------------|
| any                                  | as recorded        | none, whatever the remote has  |
| missing                              | set                | write and record it            |
| has the recorded value               | changed            | write and record it            |
| has the recorded value               | removed            | remove it                      |
| has a value that was not recorded    | any                | none: it belongs to the remote |

So a key is written once for each change at home, whatever the remote's admission makes of it. A key
that the options of a later join drop stays as it is until home removes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from translators.derived_names import short_hash
from translators.object_accessors import Object, metadata
from translators.ownership_labels import DOMAIN, copied_annotations, copied_labels
from translators.pods import dropped_metadata
from translators.translation_options import Policy

#: On a remote PVC: the keys that the bridge wrote, with a digest of each value, as in
#: ``{"labels": {"app": "9a271f2a916b0b6e"}}``.
ANNOTATION_FOLLOWED = f"{DOMAIN}/followed-metadata"
#: The domains of annotations that Kubernetes' own controllers act on.
_KUBERNETES = ("kubernetes.io", "k8s.io")
_FIELDS = ("labels", "annotations")


def passed_metadata(home: Object, policy: Policy) -> dict[str, dict[str, str]]:
    """The labels and annotations of a new remote PVC that come from home, with their record."""
    passed = {
        field: dropped_metadata.kept_keys(values, policy) for field, values in _copied(home).items()
    }
    record = {field: _digests(values) for field, values in passed.items()}
    passed["annotations"][ANNOTATION_FOLLOWED] = _format(record)
    return passed


def metadata_patch(home: Object, remote: Object, policy: Policy) -> Object:
    """The patch of the remote PVC by which its metadata follows the home PVC's; {} if there is
    nothing to do."""
    record = _recorded(remote)
    patch: Object = {}
    written: dict[str, dict[str, str]] = {}
    for field, values in _copied(home).items():
        present = metadata(remote).get(field) or {}
        # A PVC without a record was created by an earlier version: equal values are the bridge's.
        known = record[field] if record is not None else _digests(_equal(values, present))
        changed, written[field] = _follow(values, present, known, policy)
        if changed:
            patch[field] = changed
    text = _format(written)
    if text != (metadata(remote).get("annotations") or {}).get(ANNOTATION_FOLLOWED):
        patch["annotations"] = {**patch.get("annotations", {}), ANNOTATION_FOLLOWED: text}
    return {"metadata": patch} if patch else {}


def _follow(
    values: Mapping[str, str],
    present: Mapping[str, str],
    known: Mapping[str, str],
    policy: Policy,
) -> tuple[dict[str, str | None], dict[str, str]]:
    """The changes of one field of the remote PVC, and its record afterwards. ``known`` is the
    record."""
    changed: dict[str, str | None] = {}
    written: dict[str, str] = {}
    for key, value in values.items():
        is_unchanged = known.get(key) == short_hash(value)
        if is_unchanged or (key in known and dropped_metadata.is_dropped(key, policy)):
            written[key] = known[key]
        elif _may_write(key, present, known) and not dropped_metadata.is_dropped(key, policy):
            changed[key] = value
            written[key] = short_hash(value)
    for key in known.keys() - values.keys():
        if key in present and _may_write(key, present, known):
            changed[key] = None
    return changed, written


def _may_write(key: str, present: Mapping[str, str], known: Mapping[str, str]) -> bool:
    """Whether the remote has no value for the key, or the one that the bridge wrote."""
    return key not in present or known.get(key) == short_hash(present[key])


def _copied(home: Object) -> dict[str, dict[str, str]]:
    """Home's labels and annotations without those of the bridge and of Kubernetes' controllers."""
    annotations = copied_annotations(home)
    users = {key: value for key, value in annotations.items() if not _is_of_kubernetes(key)}
    return {"labels": copied_labels(home), "annotations": users}


def _is_of_kubernetes(key: str) -> bool:
    domain = key.partition("/")[0] if "/" in key else ""
    return any(domain == it or domain.endswith(f".{it}") for it in _KUBERNETES)


def _equal(values: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if present.get(key) == value}


def _digests(values: Mapping[str, str]) -> dict[str, str]:
    return {key: short_hash(value) for key, value in values.items()}


def _format(record: Mapping[str, Mapping[str, str]]) -> str:
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


def _recorded(remote: Object) -> dict[str, dict[str, str]] | None:
    """The record of each field; None if there is none, or another writer has changed it."""
    text = (metadata(remote).get("annotations") or {}).get(ANNOTATION_FOLLOWED)
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    fields = {field: value.get(field) for field in _FIELDS}
    return {
        field: {key: digest for key, digest in digests.items() if isinstance(digest, str)}
        if isinstance(digests, dict)
        else {}
        for field, digests in fields.items()
    }
