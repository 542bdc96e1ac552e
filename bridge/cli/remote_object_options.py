"""The options and kubeconfigs of Remotes and ClusterProfiles, validated in a child process.

The options are those of the command line, whose parser takes 12 MB, and a kubeconfig from a Secret
is untrusted YAML: neither belongs in the process that serves the nodes. Pickles of the requests and
the answers go between the two.
"""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

from bridge.base import memory_savings
from bridge.base.join_settings import Part, SettingsError, check_name
from bridge.fleet.joined_kind import Rejection
from bridge.fleet.object_source import Answer, Request

#: Seconds for the child; on an idle machine it takes less than one.
READ_SECONDS = 60.0


async def read_in_child(requests: list[Request]) -> list[Answer]:
    """Validates the requests (`read`)."""
    data = pickle.dumps(requests)
    output = await memory_savings.run_module(__name__, data=data, timeout=READ_SECONDS)
    if output is None:
        message = "the process that validates options has failed; the bridge tries again"
        failed = Answer(None, rejection=Rejection("NotValidated", message), is_transient=True)
        return [failed] * len(requests)
    answers: list[Answer] = pickle.loads(output)  # noqa: S301  # a process of this one wrote it
    return answers


def read(request: Request) -> Answer:
    """Validates the kubeconfig and the options of one object."""
    from bridge.cli import profile_kubeconfig
    from bridge.install import untrusted_kubeconfig

    kubeconfig = b""
    if request.access is not None:
        try:
            kubeconfig = profile_kubeconfig.build(request.access, request.node)
        except untrusted_kubeconfig.RejectedKubeconfigError as error:
            return Answer(None, rejection=Rejection("AccessProviderInvalid", str(error)))
    elif request.kubeconfig is not None:
        try:
            kubeconfig = untrusted_kubeconfig.validate(request.kubeconfig)
        except untrusted_kubeconfig.RejectedKubeconfigError as error:
            message = (
                f"the kubeconfig is not accepted: {error}. A kubeconfig of a Secret has one context"
                ", with credentials written in it: no programs, and no files"
            )
            return Answer(None, rejection=Rejection("KubeconfigRejected", message))
    try:
        part = part_of(request)
    except SettingsError as error:
        return Answer(None, rejection=Rejection("OptionsInvalid", str(error)))
    return Answer(part, has_port="port" in request.options, kubeconfig=kubeconfig)


def part_of(request: Request) -> Part:
    """The join, by its options. Raises SettingsError."""
    from bridge.cli.custom_resources import REMOTE_OPTIONS
    from bridge.cli.options.join_options import JOIN, join_settings
    from bridge.cli.options.value_parsing import InvalidValueError

    values: dict[str, Any] = {it.parameter: it.initial for it in JOIN}
    for name, value in request.options.items():
        if (option := REMOTE_OPTIONS.get(name)) is None:
            raise SettingsError(f"spec.options.{name} is not an option")
        try:
            values[option.parameter] = option.read(value, folder=Path("/"))
        except InvalidValueError as error:
            raise SettingsError(f"spec.options.{name}: {error}") from None
    values |= {
        "kubeconfig": request.path,
        "name": check_name(request.node, "spec.nodeName"),
        "home_kubeconfig": request.home.path,
        "home_context": request.home.context,
    }
    try:
        settings = join_settings(values)
    except SettingsError as error:
        properties = {it.flag: f"spec.options.{name}" for name, it in REMOTE_OPTIONS.items()}
        text = re.sub(r"--[a-z-]+", lambda it: properties.get(it[0], it[0]), str(error))
        raise SettingsError(text) from None
    return Part(request.node, settings)


if __name__ == "__main__":
    answered = [read(it) for it in pickle.load(sys.stdin.buffer)]  # noqa: S301
    sys.stdout.buffer.write(pickle.dumps(answered))
