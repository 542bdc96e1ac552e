"""Random bodies for the webhook: AdmissionReviews of any shape, and JSON that is none."""

from __future__ import annotations

import json
import random
from typing import Any

from translators.object_accessors import Object
from translators.ownership_labels import LABEL_VIRTUAL

#: Namespaces of the fake home: one for each policy, one without, and one that does not exist.
NAMESPACES = ("burst", "remote-only", "local-only", "default", "missing")

_WRONG: list[Any] = [
    None,
    True,
    -1,
    10**30,
    1.5,
    "",
    "text",
    "\x00",
    "\u202e",
    [],
    {},
    [[]],
    [None],
]
_KEYS = [
    "key",
    "operator",
    "values",
    "effect",
    "weight",
    "preference",
    "matchExpressions",
    "metadata",
]


def _value(rng: random.Random, depth: int) -> Any:
    """Any JSON value."""
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice(_WRONG)
    if rng.random() < 0.5:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    keys = rng.choices([*_KEYS, LABEL_VIRTUAL, "kind", ""], k=rng.randint(0, 4))
    return {key: _value(rng, depth - 1) for key in keys}


def _pod(rng: random.Random) -> Object:
    tolerations = [
        {"key": rng.choice([LABEL_VIRTUAL, "other"]), "operator": "Exists", "value": str(number)}
        for number in range(rng.randint(0, 5))
    ]
    expression = {"key": LABEL_VIRTUAL, "operator": rng.choice(["Exists", "DoesNotExist"])}
    terms = [{"matchExpressions": [expression] * rng.randint(0, 3)}] * rng.randint(0, 3)
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {"name": "a", "ownerReferences": []},
        "spec": {
            "containers": [{"name": "a", "image": "a"}],
            "nodeSelector": {LABEL_VIRTUAL: "x"},
            "tolerations": tolerations,
            "affinity": {"nodeAffinity": required},
        },
    }


def _damage(rng: random.Random, value: Any) -> Any:
    """The value with one place replaced by any JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: _damage(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], _damage(rng, value[at]), *value[at + 1 :]]
    return _value(rng, 4)


def _review(rng: random.Random) -> Object:
    request = {"uid": "1", "namespace": rng.choice(NAMESPACES), "object": _pod(rng)}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _nested(rng: random.Random) -> bytes:
    """JSON that is nested deeply, alone or within a review."""
    depth = int(10 ** rng.uniform(2, 6))
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"request":', b"}]")])
    nested = opening * depth + b"1" + (closing * depth if rng.random() < 0.7 else b"")
    if rng.random() < 0.5:
        return nested[:2_500_000]
    marked = json.dumps(_damage(rng, _review(rng))).encode()
    return marked.replace(b'"Exists"', nested[:100_000]).replace(b'"1"', nested[:100_000], 1)


def _large(rng: random.Random) -> bytes:
    """A review of some MiB, or one whose patch would be much larger than it."""
    size = int(10 ** rng.uniform(3, 5.5))
    review = _review(rng)
    spec = review["request"]["object"]["spec"]
    nodes = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    shape = rng.randint(0, 3)
    if shape == 0:
        nodes["nodeSelectorTerms"] = [{}] * size
    elif shape == 1:
        spec["tolerations"] = [{"key": LABEL_VIRTUAL, "value": it} for it in range(size // 10)]
    elif shape == 2:
        review["request"]["uid"] = "u" * size * 10
    else:
        review["request"]["object"]["metadata"]["annotations"] = {"a": "\u0001" * size}
    return json.dumps(review).encode()


def random_review(rng: random.Random) -> bytes:
    form = rng.random()
    if form < 0.3:
        return json.dumps(_review(rng)).encode()
    if form < 0.75:
        return json.dumps(_damage(rng, _review(rng))).encode()
    if form < 0.85:
        return json.dumps(_value(rng, 6)).encode()
    if form < 0.9:
        return rng.choice([b"", b"null", b"NaN", b'"\\ud800"', b"\xff\xfe{}", b"{" * 50, b"1e999"])
    if form < 0.97:
        return json.dumps(_review(rng)).encode()[: rng.randint(1, 300)]
    return _nested(rng) if form < 0.99 else _large(rng)
