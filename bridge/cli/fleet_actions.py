"""The parts of `bridge run` that need more than a running bridge keeps in memory.

- The configuration file is read again by a child process, because its options are those of the
  command line: the option parser takes 12 MB, and a file is read seldom. The file's text stays in
  the child; a pickle of the joins, or the error, comes back.
- A remote is left by the code of `bridge leave`, which is imported when it is first needed.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bridge.base import memory_savings
from bridge.base.join_settings import Part, SettingsError
from bridge.cli.reexec_to_free_memory import LogSettings, ObjectsRef
from bridge.fleet.config_file_source import ConfigFileSource, FollowedFile, UnreadableFileError
from bridge.fleet.desired_state import DesiredState
from bridge.fleet.object_source import ObjectSource
from bridge.fleet.supervisor import Leave
from sync.base.private_file import state_directory

#: The joins and the output settings of a file.
_Content = tuple[tuple[Part, ...], LogSettings]
#: The answer of the child: the content, or None, the error, and whether it is one of reading.
_Answer = tuple[_Content | None, str, bool]
#: Seconds for the child; on an idle machine it takes less than one.
READ_SECONDS = 60.0


def file_source(
    file: FollowedFile | None, first: tuple[Part, ...], logs: LogSettings
) -> ConfigFileSource:
    """The source of the joins in the file, which was read at the start with this result."""
    followed = file or FollowedFile(Path("bridge.yaml"), None, is_regular=False)

    async def read(ports: Mapping[str, int]) -> DesiredState:
        parts, new_logs = await read_in_child(followed.path, ports)
        return DesiredState(parts, _warnings(logs, new_logs))

    return ConfigFileSource(followed, first, read)


async def read_in_child(path: Path, ports: Mapping[str, int]) -> _Content:
    """The content of the file (`bridge.cli.run_config_file.read`). Raises SettingsError."""
    question = pickle.dumps((path, dict(ports)))
    output = await memory_savings.run_module(__name__, data=question, timeout=READ_SECONDS)
    if output is None:
        raise UnreadableFileError(f"{path}: cannot be read: the process that reads it has failed")
    answer: _Answer = pickle.loads(output)  # noqa: S301  # a process of this one wrote it
    content, error, is_unreadable = answer
    if content is None:
        raise UnreadableFileError(error) if is_unreadable else SettingsError(error)
    return content


def _answer(path: Path, ports: Mapping[str, int]) -> _Answer:
    from bridge.cli.run_config_file import read

    try:
        return read(path, ports), "", False
    except SettingsError as error:
        return None, str(error), isinstance(error, UnreadableFileError)


def _warnings(before: LogSettings, now: LogSettings) -> tuple[str, ...]:
    names = {"verbose": "verbose", "log_format": "log-format", "traces": "traces"}
    changed = [key for name, key in names.items() if getattr(before, name) != getattr(now, name)]
    if not changed:
        return ()
    return (f"{', '.join(changed)} changed, which takes effect at the next start of the bridge",)


def object_source(objects: ObjectsRef) -> ObjectSource:
    """The source of the Remotes or ClusterProfiles of a namespace."""
    from bridge.cli import remote_object_options
    from bridge.fleet.cluster_profiles import ClusterProfileKind
    from bridge.fleet.remote_objects import RemoteKind

    profiles = objects.profiles
    return ObjectSource(
        objects.home,
        objects.namespace,
        RemoteKind()
        if profiles is None
        else ClusterProfileKind(profiles.plugins, profiles.options),
        read=remote_object_options.read_in_child,
        directory=state_directory(
            "cluster-bridge",
            "remotes" if profiles is None else "cluster-profiles",
            objects.namespace,
        ),
    )


def leave_action(notify: Callable[[str], None]) -> Leave:
    """Leaves a remote as `bridge leave NODE --kubeconfig REMOTE --yes` does, and if it is to be
    abandoned and does not answer, with ``--force --keep-volumes``."""

    async def leave(part: Part) -> None:
        from bridge.leave import leave_procedure
        from bridge.leave.leave_summary import LeaveSettings

        def confirm(lines: list[str]) -> bool:
            for line in lines:
                notify(f"to be removed: {line}")
            return True

        join = part.settings
        is_unreachable = part.abandons and not await _answers(part)
        settings = LeaveSettings(
            name=join.name or part.label,
            home=join.home,
            remote=join.remote,
            force=is_unreachable,
            # Their data stays in the remote, and their objects at home, until the remote answers.
            keep_volumes=is_unreachable,
            cert_dir=join.cert_dir,
            remote_namespaces=join.remote_namespaces,
        )
        await leave_procedure.leave(settings, notify=notify, confirm=confirm)

    return leave


async def _answers(part: Part) -> bool:
    """Whether the API server of the remote answers."""
    from bridge.base.command_error import PreflightError
    from bridge.clusters.connection import connect

    try:
        async with connect(part.settings.remote, side="remote", notify=lambda _: None):
            return True
    except PreflightError:
        return False


if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(_answer(*pickle.load(sys.stdin.buffer))))  # noqa: S301
