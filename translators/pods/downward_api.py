"""The downward API: identity that a pod reads of itself stays home's.

What would differ in the remote is read from annotations of the remote pod (`naming`) instead, or
written out where it does not change while the pod lives. Files of all labels or all annotations
hold home's alone, as a kubelet at home would write them; that text is such an annotation too, and
follows home's pod (`podupdate`). Where annotations and text together are more than a pod may have
(`ANNOTATIONS_MAX`), the file of a new pod is left to the remote's kubelet, which writes what ours
and the remote's machinery added too; that of a running pod stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from translators.fieldpaths import FieldMessage, FieldPaths, find_fields
from translators.identity import (
    ANNOTATION_ANNOTATIONS_FILE,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    ANNOTATION_LABELS_FILE,
    ANNOTATION_NODE_NAME,
    is_bridge_key,
)
from translators.objects import Object, metadata

#: Bytes of all keys and values of an object's annotations (TotalAnnotationSizeLimitB of
#: apimachinery's pkg/api/validation/objectmeta.go).
ANNOTATIONS_MAX = 256 * 1024


def _annotation(key: str) -> str:
    return f"metadata.annotations['{key}']"


#: What identity in the downward API is read from instead, so that the pod sees home's.
_REWRITTEN_FIELDS = {
    "metadata.namespace": _annotation(ANNOTATION_HOME_NAMESPACE),
    "metadata.uid": _annotation(ANNOTATION_HOME_UID),
    "spec.nodeName": _annotation(ANNOTATION_NODE_NAME),
}
#: Files of whole maps, and the annotation that holds their text.
_FILES = {
    "labels": ANNOTATION_LABELS_FILE,
    "annotations": ANNOTATION_ANNOTATIONS_FILE,
}
_FILE_PATHS = FieldPaths(
    "spec.volumes[].downwardAPI.items[].fieldRef.fieldPath",
    "spec.volumes[].projected.sources[].downwardAPI.items[].fieldRef.fieldPath",
)


def translate_env(container: Object, *, account: str, address: str) -> Object:
    if not container.get("env"):
        return container
    known = {
        "spec.serviceAccountName": account,
        "status.hostIP": address,
        "status.hostIPs": address,
    }
    return {**container, "env": [_variable(variable, known) for variable in container["env"]]}


def _variable(variable: Object, known: dict[str, str]) -> Object:
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if path in known:
        return {"name": variable["name"], "value": known[path]}
    if path in _REWRITTEN_FIELDS:
        return {**variable, "valueFrom": {"fieldRef": _field_ref(_REWRITTEN_FIELDS[path])}}
    return variable


# -- files ---------------------------------------------------------------------------------


def map_files(home: Object) -> dict[str, str]:
    """The text of each file of whole labels or annotations that a volume of the pod has, by the
    annotation that is to hold it."""
    paths = {path for _, path in _file_paths(home)}
    return {
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


def fits_annotation_limit(annotations: Mapping[str, str], texts: Mapping[str, str]) -> bool:
    """Whether a pod may have these annotations together with these texts."""
    if not texts:
        return True  # What else it has is for the API server to judge.
    both = {**annotations, **texts}
    return sum(len(k.encode()) + len(v.encode()) for k, v in both.items()) <= ANNOTATIONS_MAX


def oversized_map_files(home: Object) -> list[FieldMessage]:
    """The files of whole maps, as what is told when their text has no room."""
    whole = [f"metadata.{field}" for field in _FILES]
    why = "with their text there are too many annotations; the file holds the remote pod's"
    return [FieldMessage(at, why) for at, path in _file_paths(home) if path in whole]


def _file_paths(home: Object) -> Iterator[tuple[str, str]]:
    if not (home.get("spec") or {}).get("volumes"):
        return
    for _, at, path in find_fields(home, _FILE_PATHS):
        yield at, path


def format_map(values: Mapping[str, str]) -> str:
    """A map as a kubelet writes it into a file: FormatMap of pkg/fieldpath."""
    return "\n".join(f"{key}={_quoted(values[key])}" for key in sorted(values))


#: The escapes of Go's strconv.Quote for which there is a letter.
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


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _LETTERS:
        return _LETTERS[char]
    # Both languages call printable what Unicode has as letter, mark, number, punctuation, symbol.
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def translate_volume(volume: Object, texts: Mapping[str, str]) -> Object:
    """The volume with its downward API files reading home's identity, and those whose text is in
    ``texts`` (`files`) reading that."""
    rewritten = _REWRITTEN_FIELDS | {
        f"metadata.{field}": _annotation(annotation)
        for field, annotation in _FILES.items()
        if annotation in texts
    }
    if volume.get("downwardAPI"):
        return {**volume, "downwardAPI": _identity_in_files(volume["downwardAPI"], rewritten)}
    sources = (volume.get("projected") or {}).get("sources")
    if not sources:
        return volume
    renamed = [
        {**source, "downwardAPI": _identity_in_files(source["downwardAPI"], rewritten)}
        if source.get("downwardAPI")
        else source
        for source in sources
    ]
    return {**volume, "projected": {**volume["projected"], "sources": renamed}}


def _identity_in_files(downward: Object, rewritten: Mapping[str, str]) -> Object:
    items = []
    for item in downward.get("items") or ():
        path = str((item.get("fieldRef") or {}).get("fieldPath"))
        changed = {**item, "fieldRef": _field_ref(rewritten[path])} if path in rewritten else item
        items.append(changed)
    return {**downward, "items": items} if items else downward


def _field_ref(path: str) -> Object:
    return {"apiVersion": "v1", "fieldPath": path}
