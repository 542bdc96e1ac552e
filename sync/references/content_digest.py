"""Keeps the digest of a ConfigMap's or Secret's content in place of the content.

The content of a home object is needed until its copy is written; that of a copy never is:
whether the two are equal follows from their digests. Otherwise objects of a megabyte would be in
memory twice, and on standby replicas, too.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from sync.cache.stub import Stub
from translators.object_accessors import Object, metadata
from translators.pods.service_accounts import pod_of_token_secret

#: The fields with the content of a ConfigMap or Secret.
CONTENT = ("data", "binaryData")
#: The field of an object in a cache with the digest of its content.
DIGEST = "contentDigest"


def digest(content: Any) -> str:
    raw = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def slim_original(obj: Object) -> Object:
    """The home object with the digest of its content, and without what is not copied."""
    for field in ("managedFields", "annotations"):
        metadata(obj).pop(field, None)
    obj[DIGEST] = digest([obj.get(field) or {} for field in CONTENT])
    return obj


def without_content(original: Object) -> Stub:
    """The stub of an object that `slim_original` returned: all but its content."""
    return Stub({key: value for key, value in original.items() if key not in CONTENT})


def slim_copy(copy: Object) -> Object:
    """The copy in the remote with the digest of its content instead of the content; a Secret with
    tokens also has the digest of each value."""
    metadata(copy).pop("managedFields", None)
    data, binary = (copy.pop(field, None) or {} for field in CONTENT)
    copy[DIGEST] = digest([data, binary])
    if pod_of_token_secret(copy) is not None:
        copy["data"] = {key: digest(value) for key, value in data.items()}
    return copy
