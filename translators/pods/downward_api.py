"""Translates the downward API, so that a remote pod reads home's identity.

Fields that differ in the remote are read from annotations of the remote pod, or replaced with their
value if it is constant. Files with all labels or annotations contain those of the home pod only: an
annotation holds their text and follows the home pod (`translators.pods.update`), as it does for
files with one label or annotation that the remote pod lacks. If annotations and text exceed the
limit of 256 KiB, the remote's kubelet writes the file of a new pod, with labels and annotations
that the bridge and the remote added; the file of a running pod is not updated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from translators.derived_names import short_hash
from translators.field_paths import FieldMessage, FieldPaths, find_fields
from translators.object_accessors import Object, metadata
from translators.ownership_labels import (
    ANNOTATION_ANNOTATIONS_FILE,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    ANNOTATION_LABELS_FILE,
    ANNOTATION_NODE_NAME,
    DOMAIN,
    is_bridge_key,
)

#: Maximum bytes of keys and values of an object's annotations (TotalAnnotationSizeLimitB of
#: apimachinery's pkg/api/validation/objectmeta.go).
ANNOTATIONS_MAX = 256 * 1024


def _annotation(key: str) -> str:
    return f"metadata.annotations['{key}']"


#: Fields with identity, and the annotation of the remote pod that replaces each.
_REWRITTEN_FIELDS = {
    "metadata.namespace": _annotation(ANNOTATION_HOME_NAMESPACE),
    "metadata.uid": _annotation(ANNOTATION_HOME_UID),
    "spec.nodeName": _annotation(ANNOTATION_NODE_NAME),
}
#: Files with a complete map, and the annotation with their text.
_FILES = {"labels": ANNOTATION_LABELS_FILE, "annotations": ANNOTATION_ANNOTATIONS_FILE}
_FILE_PATHS = FieldPaths(
    "spec.volumes[].downwardAPI.items[].fieldRef.fieldPath",
    "spec.volumes[].projected.sources[].downwardAPI.items[].fieldRef.fieldPath",
)


def env_values(*, account: str, address: str, dropped: Mapping[str, str]) -> dict[str, str]:
    """The constant values of environment variables of a home pod, by field path. ``dropped``:
    values of labels and annotations that the remote pod lacks."""
    return {
        "spec.serviceAccountName": account,
        "status.hostIP": address,
        "status.hostIPs": address,
        **dropped,
    }


def translate_env(container: Object, values: dict[str, str]) -> Object:
    """The container with environment variables that contain home's identity. ``values``: those of
    `env_values`, which all containers of the pod share."""
    if not container.get("env"):
        return container
    return {**container, "env": [_variable(variable, values) for variable in container["env"]]}


def _variable(variable: Object, values: dict[str, str]) -> Object:
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if path in values:
        # The kubelet expands `$(NAME)` in a value, and takes `$$` for `$`.
        return {"name": variable["name"], "value": values[path].replace("$", "$$")}
    if path in _REWRITTEN_FIELDS:
        return {**variable, "valueFrom": {"fieldRef": _field_ref(_REWRITTEN_FIELDS[path])}}
    return variable


def file_texts(home: Object, dropped: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """The text of each file with all labels or annotations that the pod's volumes contain, and of
    each with one of the ``dropped`` values, as of `env_values`; by annotation."""
    paths = {path for _, path in _file_paths(home)}
    values = dropped() if any("[" in path for path in paths) else {}
    texts = {_value_annotation(path): values[path] for path in sorted(paths & values.keys())}
    return texts | {
        annotation: format_map(
            {
                key: str(value)
                for key, value in (metadata(home).get(field) or {}).items()
                if not is_bridge_key(key)
            }
        )
        for field, annotation in _FILES.items()
        if paths & {f"metadata.{field}", _annotation(annotation)}
    }


def _value_annotation(path: str) -> str:
    return f"{DOMAIN}/value-{short_hash(path)}"


def fits_annotation_limit(annotations: Mapping[str, str], texts: Mapping[str, str]) -> bool:
    """Whether a pod may have these annotations and texts together."""
    if not texts:
        return True  # The API server validates the other annotations.
    combined = {**annotations, **texts}
    return sum(len(k.encode()) + len(v.encode()) for k, v in combined.items()) <= ANNOTATIONS_MAX


def oversized_map_files(home: Object) -> list[FieldMessage]:
    """Messages for files whose text exceeds the limit."""
    whole = [f"metadata.{field}" for field in _FILES]
    message = "their text exceeds the limit for annotations; the file has the remote pod's"
    return [
        FieldMessage(location, message) for location, path in _file_paths(home) if path in whole
    ]


def _file_paths(home: Object) -> Iterator[tuple[str, str]]:
    for _, location, path in find_fields(home, _FILE_PATHS):
        yield location, path


def format_map(values: Mapping[str, str]) -> str:
    """A map in the format of a kubelet's file (FormatMap in pkg/fieldpath)."""
    return "\n".join(f'{key}="{"".join(map(_escaped, values[key]))}"' for key in sorted(values))


#: The letter escapes of Go's strconv.Quote.
_LETTERS = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    '"': r"\"",
    "\\": r"\\",
}


def _escaped(char: str) -> str:
    if char in _LETTERS:
        return _LETTERS[char]
    # Go and Python agree: letters, marks, numbers, punctuation and symbols are printable.
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def translate_volume(volume: Object, texts: Mapping[str, str]) -> Object:
    """The volume whose downward API files contain the home pod's identity, and the texts of
    `file_texts`."""
    rewritten = _REWRITTEN_FIELDS | {
        f"metadata.{field}": _annotation(annotation)
        for field, annotation in _FILES.items()
        if annotation in texts
    }
    if volume.get("downwardAPI"):
        files = _identity_in_files(volume["downwardAPI"], rewritten, texts)
        return {**volume, "downwardAPI": files}
    sources = (volume.get("projected") or {}).get("sources")
    if not sources:
        return volume
    renamed = [
        {**source, "downwardAPI": _identity_in_files(source["downwardAPI"], rewritten, texts)}
        if source.get("downwardAPI")
        else source
        for source in sources
    ]
    return {**volume, "projected": {**volume["projected"], "sources": renamed}}


def _identity_in_files(
    downward: Object, rewritten: Mapping[str, str], texts: Mapping[str, str]
) -> Object:
    items = []
    for item in downward.get("items") or ():
        path = str((item.get("fieldRef") or {}).get("fieldPath"))
        replaced = rewritten.get(path)
        if replaced is None and texts and (annotation := _value_annotation(path)) in texts:
            replaced = _annotation(annotation)
        items.append({**item, **({"fieldRef": _field_ref(replaced)} if replaced else {})})
    return {**downward, "items": items} if items else downward


def _field_ref(path: str) -> Object:
    return {"apiVersion": "v1", "fieldPath": path}
