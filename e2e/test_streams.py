"""Streams of users through home's API server and the bridge to the remote's pods."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import TEST_SECONDS, Bridged
from e2e.kubectl import get_one, wait_for
from e2e.kubectl_streams import KubectlTerminal, command, forwarded, protocol, run, running
from e2e.workload_manifests import BUSYBOX, pod, shell, web

MANY_BYTES = 100_000_000


def _pod(bridged: Bridged, name: str, *containers: object, **spec: Any) -> None:
    """A pod that is Ready."""
    if containers:
        spec["containers"] = list(containers)
    bridged.apply(pod(bridged.node, name, **spec))
    bridged.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=90s")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- exec ------------------------------------------------------------------------------------------


@pytest.mark.core
def test_exec_is_exact(bridged: Bridged) -> None:
    """Exit status, separate errors, an end of input, 100 MB in each direction, 50 at once.

    With SPDY a fifth of the data: the bridge receives SPDY from home's API server in both cases.
    """
    _pod(bridged, "shell")
    for websockets, size, at_once in ((True, MANY_BYTES, 50), (False, MANY_BYTES // 5, 10)):
        data = os.urandom(size)
        shell_in_pod = _shell(bridged, websockets=websockets)
        status, out, err = shell_in_pod("echo out; echo err >&2; exit 42")
        assert (status, out, err.splitlines()[0]) == (42, b"out\n", b"err")
        assert shell_in_pod("cat; echo ended", b"x\n") == (0, b"x\nended\n", b"")
        status, out, _ = shell_in_pod("sha256sum", data)
        assert (status, out.split()[0].decode()) == (0, _digest(data))
        status, out, err = shell_in_pod(
            f"head -c {size} /dev/urandom | tee /tmp/sent; sha256sum /tmp/sent >&2"
        )
        assert (status, len(out)) == (0, size)
        assert err.split()[0].decode() == _digest(out)

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            parts = [data[number * 1_000_000 :][:1_000_000] for number in range(at_once)]
            copies = list(pool.map(shell_in_pod, ["cat"] * at_once, parts))
        assert [(status, _digest(out)) for status, out, _ in copies] == [
            (0, _digest(part)) for part in parts
        ], [err[-500:] for status, _, err in copies if status != 0]


def _shell(bridged: Bridged, *, websockets: bool) -> Callable[..., tuple[int, bytes, bytes]]:
    """Runs a script in the pod: its exit status, output and errors."""
    env = protocol(websockets)

    def shell_in_pod(script: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        args = ("exec", "-i", "shell", "--", "sh", "-c", script)
        done = run(bridged.home, bridged.namespace, *args, stdin=stdin, env=env)
        return done.returncode, done.stdout, done.stderr

    return shell_in_pod


def test_other_clients_of_exec(bridged: Bridged) -> None:
    """The Python client's WebSocket; a WebSocket at the kubelet API itself; and /run."""
    _pod(bridged, "shell")
    _python_client(bridged)
    url = f"/api/v1/nodes/{bridged.node}/proxy/run/{bridged.namespace}/shell/main"
    post = ("create", "-f", "-", "--raw")
    output = run(bridged.home, bridged.namespace, *post, url + "?cmd=echo%20one%20two")
    assert (output.stdout, output.stderr) == (b"one two\n", b"")
    failed = run(bridged.home, bridged.namespace, *post, url + "?cmd=false")
    assert failed.returncode != 0
    assert b"exit code" in failed.stderr

    bridged.kubectl("create", "serviceaccount", "caller")
    binding = f"caller-{bridged.namespace}"
    rights = ("--clusterrole=cluster-admin", f"--serviceaccount={bridged.namespace}:caller")
    bridged.kubectl("create", "clusterrolebinding", binding, *rights)
    try:
        _newest_protocol(bridged, bridged.kubectl("create", "token", "caller").strip())
    finally:
        bridged.kubectl("delete", "clusterrolebinding", binding)


def _python_client(bridged: Bridged) -> None:
    from kubernetes import client, config
    from kubernetes.stream import stream

    kubeconfig = str(bridged.home.kubeconfig)
    api = client.CoreV1Api(config.new_client_from_config(kubeconfig))  # type: ignore[no-untyped-call]
    command = ["sh", "-c", "read line; echo got $line; echo err >&2; exit 3"]
    session = stream(
        api.connect_get_namespaced_pod_exec,
        *("shell", bridged.namespace),
        command=command,
        stdin=True,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(session.sock.shutdown)  # its `close` does not close an ended socket
        session.write_stdin("a line\n")
        session.run_forever(timeout=30)
        assert (session.read_stdout(), session.read_stderr()) == ("got a line\n", "err\n")
        assert session.returncode == 3


def _newest_protocol(bridged: Bridged, token: str) -> None:
    """The protocol of home's API servers from 1.36 on: the newest one, not translated."""
    from websocket import ABNF, create_connection

    node = get_one(bridged.home, "node", bridged.node)["status"]
    port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    target = f"/exec/{bridged.namespace}/shell/main?input=1&output=1&command=cat"
    made = create_connection(
        f"wss://{node['addresses'][0]['address']}:{port}{target}",
        header=[f"Authorization: Bearer {token}"],
        subprotocols=["v5.channel.k8s.io"],
        sslopt={"cert_reqs": 0, "check_hostname": False},
        timeout=30,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(made.shutdown)
        assert made.getsubprotocol() == "v5.channel.k8s.io"
        made.send(b"\0hello", ABNF.OPCODE_BINARY)
        made.send(b"\xff\0", ABNF.OPCODE_BINARY)  # the end of input
        received = {1: b"", 3: b""}
        while not received[3]:
            message = made.recv()
            assert isinstance(message, bytes)
            received[message[0]] += message[1:]
    assert received[1] == b"hello"
    assert json.loads(received[3])["status"] == "Success"


# -- terminals -------------------------------------------------------------------------------------


def test_terminals(bridged: Bridged) -> None:
    """exec, attach, run and debug with a terminal whose size changes."""
    _pod(bridged, "shell", shell("main", "exec sh", stdin=True, tty=True))
    placed = json.loads(pod(bridged.node, "once"))["spec"]
    del placed["containers"]
    overrides = json.dumps({"apiVersion": "v1", "spec": placed})
    once = ("run", "once", "-it", "--rm", "--restart=Never", f"--image={BUSYBOX}")
    for websockets in (True, False):

        def in_terminal(*args: str, env: Mapping[str, str] = protocol(websockets)) -> int | None:
            """Checks a shell's terminal and exits it; an attach has no shell to exit."""
            line = command(bridged.home, bridged.namespace, *args)
            with KubectlTerminal(line, env=env, size=(33, 77)) as screen:
                _has_size(screen)
                if args[0] == "attach":
                    return None
                screen.type("exit 7\n")
                return screen.wait_for_exit()

        assert in_terminal("exec", "-it", "shell", "--", "sh") == 7
        in_terminal("attach", "-it", "shell")
        debugger = f"debugger-{websockets}".lower()
        in_terminal("debug", "-it", "shell", f"--image={BUSYBOX}", "-c", debugger)
        assert in_terminal(*once, f"--overrides={overrides}", "--", "sh") == 7
        wait_for(
            lambda: [found["metadata"]["name"] for found in bridged.home_pods()] == ["shell"],
            "kubectl has removed its pod",
        )


def _has_size(screen: KubectlTerminal) -> None:
    """The container's terminal has the size of the user's, before and after a change."""
    screen.type("\n")
    _until_seen(screen, "33 77\r")
    screen.resize(44, 99)
    _until_seen(screen, "44 99\r")


def _until_seen(screen: KubectlTerminal, size: str) -> None:
    for _ in range(20):
        screen.type("stty size; echo e''nd\n")
        if screen.sees(size, before="end\r"):
            return
        time.sleep(0.5)
    raise AssertionError(f"the terminal never has the size {size}")


# -- cp --------------------------------------------------------------------------------------------


def test_copy_of_a_directory_both_ways(bridged: Bridged, tmp_path: Path) -> None:
    """`kubectl cp`: names, contents and a large file are unchanged in both directions."""
    _pod(bridged, "shell")
    sent = tmp_path / "sent"
    (sent / "deep" / "er").mkdir(parents=True)
    (sent / "large").write_bytes(os.urandom(50_000_000))
    (sent / "empty").touch()
    for number in range(100):
        (sent / "deep" / "er" / f"file {number}").write_bytes(os.urandom(number))
    for websockets in (True, False):
        there, back = f"shell:/tmp/{websockets}", tmp_path / f"back-{websockets}"
        for args in ((str(sent), there), (there, str(back))):
            done = run(bridged.home, bridged.namespace, "cp", *args, env=protocol(websockets))
            assert done.returncode == 0, done.stderr
        assert _contents(back) == _contents(sent)


def _contents(folder: Path) -> dict[str, str]:
    """Path → digest of each file below it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): _digest(path.read_bytes()) for path in files}


# -- port-forward ----------------------------------------------------------------------------------


def test_port_forward(bridged: Bridged) -> None:
    """Many connections, 100 MB in each direction, one that ends alone; Service, Deployment."""
    _pod(bridged, "echo", shell("main", "nc -ll -p 9000 -e /bin/cat"))
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    for websockets in (True, False):
        env = protocol(websockets)
        with forwarded(bridged.home, bridged.namespace, "pod/echo", 9000, env=env) as address:
            _echoes(address)
        for target, port in (("service/web", 80), ("deployment/web", 8080)):
            with forwarded(bridged.home, bridged.namespace, target, port, env=env) as (host, local):
                url = f"http://{host}:{local}/hostname"
                with urllib.request.urlopen(url, timeout=30) as answer:
                    assert answer.read().startswith(b"web-")


def _echoes(address: tuple[str, int]) -> None:
    many = [socket.create_connection(address, timeout=60) for _ in range(20)]
    for number, connection in enumerate(many):
        connection.sendall(b"%04d" % number)
    for number, connection in enumerate(many):
        assert _receive(connection, 4) == b"%04d" % number
    many.pop().close()
    data = os.urandom(MANY_BYTES)
    sender = threading.Thread(target=many[0].sendall, args=(data,))
    sender.start()
    assert _digest(_receive(many[0], MANY_BYTES)) == _digest(data)
    sender.join()
    for connection in many:
        connection.sendall(b"still here")
        assert _receive(connection, 10) == b"still here"
        connection.close()
    with socket.create_connection(address, timeout=60) as again:
        again.sendall(b"again")
        assert _receive(again, 5) == b"again"


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(1 << 20)
        assert part, f"the connection ended after {len(received)} of {size} bytes"
        received += part
    return bytes(received)


# -- logs, and long-lived streams ------------------------------------------------------------------

#: Lines written at once, and one by one. A line has 1,040 bytes in its file, so the first ones stay
#: just below the 10 MiB at which a kubelet rotates: it does so after a reader has read all of them.
#: (A kubelet's followers lose lines that they have not read by then.)
_AT_ONCE, _ONE_BY_ONE = 10_000, 600
#: Seconds of silence: longer than the minute after which load balancers and proxies tend to close.
#: For an hour and more: CLUSTER_BRIDGE_IDLE_SECONDS=3600.
IDLE_SECONDS = float(os.environ.get("CLUSTER_BRIDGE_IDLE_SECONDS") or 62)


@pytest.mark.timeout(TEST_SECONDS + IDLE_SECONDS, func_only=True)
def test_logs_beside_an_idle_exec(bridged: Bridged) -> None:
    """A rotation loses and duplicates no line; options of logs; and an exec and a follower stay
    open without data for over a minute."""
    script = (
        f'awk \'BEGIN {{ for (n = 1; n <= {_AT_ONCE}; n++) printf "%d %993s\\n", n, "" }}\'; '
        f"n={_AT_ONCE}; while [ $n -lt {_AT_ONCE + _ONE_BY_ONE} ]; do n=$((n+1)); "
        "printf '%d %993s\\n' $n ''; usleep 40000; done; echo done; sleep 3600"
    )
    _pod(bridged, "shell", shell("main", "mkfifo /tmp/line; while true; do cat /tmp/line; done"))
    idle = ("exec", "-i", "shell", "--", "cat")
    with (
        running(bridged.home, bridged.namespace, *idle) as silent,
        running(bridged.home, bridged.namespace, "logs", "-f", "shell") as waiting,
    ):
        since = time.monotonic()
        _pod(bridged, "talks", shell("main", script))
        with running(bridged.home, bridged.namespace, "logs", "-f", "talks") as follower:
            assert follower.stdout is not None
            for number in range(1, _AT_ONCE + _ONE_BY_ONE + 1):
                assert follower.stdout.readline().split() == [b"%d" % number]
            assert follower.stdout.readline() == b"done\n"
        # Without --follow a kubelet shows the newest file only.
        assert bridged.kubectl("logs", "talks").split()[0] != "1", "it was never rotated"
        _has_parts(bridged)
        time.sleep(max(0.0, IDLE_SECONDS - (time.monotonic() - since)))
        assert _echoed(silent, b"still here\n") == b"still here\n"
        bridged.kubectl("exec", "shell", "--", "sh", "-c", "echo a line >/tmp/line")
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"a line\n"


def _has_parts(bridged: Bridged) -> None:
    """Init containers and several containers; since, tail, limit and time stamps."""
    # Two seconds: an API server ignores the fractions of --since-time.
    say = "echo one; echo two; sleep 2; echo three; sleep 3600"
    _pod(
        bridged,
        "parts",
        shell("a", say),
        shell("b", "echo other; sleep 3600"),
        initContainers=[shell("first", "echo begun")],
    )

    def logs(*args: str) -> list[str]:
        return bridged.kubectl("logs", "parts", *args).splitlines()

    assert logs("-c", "first") == ["begun"]
    wait_for(lambda: logs("-c", "a") == ["one", "two", "three"], "container a has spoken")
    wait_for(lambda: logs("-c", "b") == ["other"], "container b has spoken")
    assert sorted(logs("--all-containers", "--prefix")) == [
        "[pod/parts/a] one",
        "[pod/parts/a] three",
        "[pod/parts/a] two",
        "[pod/parts/b] other",
        "[pod/parts/first] begun",
    ]
    assert logs("-c", "a", "--tail=2") == ["two", "three"]
    assert logs("-c", "a", "--tail=0") == []
    assert logs("-c", "a", "--limit-bytes=5") == ["one", "t"]
    stamped = logs("-c", "a", "--timestamps")
    moments = [line.split()[0] for line in stamped]
    assert logs("-c", "a", f"--since-time={moments[2]}", "--timestamps") == stamped[2:]
    assert logs("-c", "a", "--since-time=2999-01-01T00:00:00Z") == []
    direct = bridged.remote.kubectl(
        "-n", bridged.remote_namespace, "logs", "parts", "-c", "a", "--timestamps"
    )
    assert stamped == direct.stdout.splitlines()


def test_unreachable_remote_ends_its_streams(bridged: Bridged) -> None:
    """Packets are lost: kubectl ends within a minute, whether it sends or not.

    Its exit status is 0: API servers treat a lost connection to a kubelet as the end.
    """
    _pod(bridged, "shell")
    cat = ("exec", "-i", "shell", "--", "cat")
    with (
        running(bridged.home, bridged.namespace, *cat) as sends,
        running(bridged.home, bridged.namespace, *cat) as waits,
    ):
        for process in (sends, waits):
            assert _echoed(process, b"hello\n") == b"hello\n"
        bridged.remote.freeze_network()
        try:
            assert sends.stdin is not None
            sends.stdin.write(b"is there anybody\n")
            sends.stdin.flush()
            sends.wait(60)
            waits.wait(60)
        finally:
            bridged.remote.thaw_network()


def _echoed(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()
