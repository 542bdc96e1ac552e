"""Checks which Pod Security levels the remote namespaces of this home enforce."""

from __future__ import annotations

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, info, ok, warning
from sync.kube.api_resources import NAMESPACES
from translators import pod_security
from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import LABEL_HOME
from translators.pod_security import LEVELS

_UNSET_HINT = "none: the bridge sets it when it next creates an object there"
_PRIVILEGED_HINT = (
    "their pods can become root on the remote's nodes; to prevent that, join with --pod-security "
    "baseline"
)


async def check_levels(context: CheckContext) -> list[Finding]:
    """BRG508."""
    limit = context.settings.pod_security
    rule = "new namespaces have the level of home's namespace, or baseline"
    found = [ok("BRG508", "remote", f"{rule}; --pod-security {limit} is the loosest")]
    if context.settings.remote_namespaces:
        text = "their administrator decides for prepared namespaces, and no others are created"
        return [ok("BRG508", "remote", text)]
    owner = f"{LABEL_HOME}={await context.home_id()}"
    ours = (await context.remote_client.list(NAMESPACES, labels=owner)).items
    unset = [it for it in ours if _level(it) is None]
    if unset:
        text = f"no level is enforced: {summarize_names(map(name_of, unset))}"
        found.append(warning("BRG508", "remote", text, _UNSET_HINT))
    for level in LEVELS:
        if names := [name_of(it) for it in ours if _level(it) == level]:
            hint = _PRIVILEGED_HINT if level == LEVELS[0] else ""
            text = f"{level} is enforced: {summarize_names(names)}"
            found.append(info("BRG508", "remote", text, hint))
    return found


def _level(namespace: Object) -> str | None:
    stated = pod_security.stated_policy(metadata(namespace).get("labels") or {})
    return stated.level if stated is not None else None


IMPLEMENTATIONS = (Implementation("BRG508", check_levels, ("home", "remote")),)
