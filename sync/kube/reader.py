"""What reads kubeconfigs: `kubernetes.aio.config` without the rest of the `kubernetes` package.

Importing any part of that package runs its ``__init__`` files, which bring the models of all APIs:
20 MB resident with version 37 and 78 MB with 36, for a reader that uses none of them. Of
`kubernetes.aio.client` the reader only mentions two names. So it is imported with hollow packages
in place of those above it, and with placeholders in place of these names. `sys.modules` is left as
it was: whoever imports `kubernetes` later gets all of it.

A version that cannot be imported so is imported whole: that costs memory, and nothing else.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from sync.kube import plugins

_PACKAGE = "kubernetes"
#: What the reader names of `kubernetes.aio.client`, for functions that are not called here.
_MENTIONED = ("ApiClient", "Configuration")


@dataclass
class Settings:
    """What the reader fills in: these attributes of `kubernetes.aio.client.Configuration`."""

    host: str = ""
    verify_ssl: bool = True
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    api_key: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Reader:
    """The two names of `kubernetes.aio.config` that are used."""

    load_kube_config: Callable[..., Awaitable[Any]]
    """It fills ``client_configuration``, a `Settings`, and returns a loader that knows its
    ``current_context``."""
    ConfigException: type[Exception]


@functools.cache
def reader() -> Reader:
    """Imports it, once."""
    if _PACKAGE in sys.modules:
        return _imported()
    try:
        with _hollow_packages():
            return _imported()
    except (ImportError, AttributeError, TypeError):
        return _imported()


def _imported() -> Reader:
    from kubernetes.aio.config import ConfigException, exec_provider, load_kube_config

    plugins.watch(exec_provider)
    return Reader(load_kube_config, ConfigException)


@contextmanager
def _hollow_packages() -> Iterator[None]:
    """Lets parts of the package be imported without what their packages import."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    for name in ("", ".aio", ".aio.client"):
        module = ModuleType(_PACKAGE + name)
        below = name.replace(".", "/")
        module.__path__ = [folder + below for folder in spec.submodule_search_locations]
        sys.modules[module.__name__] = module
    for mentioned in _MENTIONED:
        setattr(module, mentioned, type(mentioned, (), {}))
    try:
        yield
    finally:
        for name in [it for it in sys.modules if it.partition(".")[0] == _PACKAGE]:
            del sys.modules[name]
