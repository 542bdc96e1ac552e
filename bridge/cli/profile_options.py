"""The files of `bridge run --cluster-profiles`: access providers, and options of every join.

Both are the operator's. The file of the providers is that of sigs.k8s.io/cluster-inventory-api
(Config in pkg/access), which Kueue and others read too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bridge.base.join_settings import SettingsError
from bridge.cli.custom_resources import REMOTE_OPTIONS
from bridge.cli.remote_object_options import part_of
from bridge.fleet.access_providers import Plugin
from bridge.fleet.object_source import Request
from sync.kube.kubeconfig_ref import KubeconfigRef

#: Fields of ``execConfig`` (ExecConfig in client-go's tools/clientcmd/api) that count here; the
#: others are for people.
_EXEC = ("apiVersion", "command", "args", "env", "provideClusterInfo")
#: Versions of the exec protocol.
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
#: Policies by which an object would choose arguments or variables of a program.
_POLICIES = ("profileSourcedCLIArgsPolicy", "profileSourcedEnvVarsPolicy")


def read_plugins(path: Path) -> tuple[Plugin, ...]:
    """The access providers of the file. Raises SettingsError."""
    text = _text(path)
    try:
        content = json.loads(text)
    except ValueError:
        raise SettingsError(f"{path}: it is not JSON") from None
    providers = content.get("providers") if isinstance(content, dict) else None
    if not isinstance(providers, list):
        raise SettingsError(f"{path}: providers is not a list")
    plugins = tuple(
        _plugin(it, f"{path}: providers[{place}]", path.absolute().parent)
        for place, it in enumerate(providers)
    )
    names = [it.name for it in plugins]
    if repeated := next((it for it in names if names.count(it) > 1), None):
        raise SettingsError(f"{path}: two providers are named {repeated}")
    return plugins


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{path}: cannot be read: {why}") from None


def _plugin(entry: Any, at: str, folder: Path) -> Plugin:
    config = entry.get("execConfig") if isinstance(entry, dict) else None
    if not isinstance(config, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise SettingsError(f"{at}: name or execConfig is missing")
    for policy in _POLICIES:
        if entry.get(policy) not in (None, "", "Ignore"):
            raise SettingsError(
                f"{at}.{policy}: only Ignore is supported: a ClusterProfile chooses no arguments "
                "and no environment of a program; write them in execConfig"
            )
    command, version = config.get("command"), config.get("apiVersion")
    if not isinstance(command, str) or not command:
        raise SettingsError(f"{at}.execConfig.command is missing")
    if version not in _VERSIONS:
        raise SettingsError(f"{at}.execConfig.apiVersion: use {' or '.join(_VERSIONS)}")
    if not _is_list_of(config.get("args"), lambda it: isinstance(it, str)):
        raise SettingsError(f"{at}.execConfig.args is not a list of texts")
    if not _is_list_of(config.get("env"), _is_variable):
        raise SettingsError(f"{at}.execConfig.env is not a list of name and value")
    exec_ = {key: config[key] for key in _EXEC if config.get(key) is not None}
    if os.sep in command:
        exec_["command"] = str(folder / Path(command).expanduser())
    return Plugin(entry["name"], exec_ | {"interactiveMode": "Never"})


def _is_list_of(value: Any, is_valid: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(is_valid, value)))


def _is_variable(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(it), str) for it in ("name", "value")
    )


def read_options(path: Path) -> Mapping[str, object]:
    """The options of the file, by the property of a Remote's ``spec.options``. Raises
    SettingsError."""
    text = _text(path)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        raise SettingsError(f"{path}: the YAML is invalid") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: write a map of options of bridge join to values")
    if content.get("port"):
        raise SettingsError(f"{path}: port: the joins share one machine; use 0, or omit it")
    properties = {option.name: name for name, option in REMOTE_OPTIONS.items()}
    unknown = next((str(it) for it in content if it not in properties), None)
    if unknown is not None:
        raise SettingsError(
            f"{path}: {unknown} is not an option that all joins can have; use "
            f"{', '.join(sorted(properties))}"
        )
    options = {properties[key]: value for key, value in content.items()}
    try:
        part_of(Request("node", options, None, Path("/"), KubeconfigRef()))
    except SettingsError as error:
        message = str(error)
        for key, name in properties.items():
            message = re.sub(rf"spec\.options\.{name}\b", key, message)
        raise SettingsError(f"{path}: {message}") from None
    return options
