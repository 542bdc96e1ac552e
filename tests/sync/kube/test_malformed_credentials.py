"""Malformed kubeconfigs, plugin answers and issuer answers, mutated from a corpus of valid ones.

An example is a folder with a kubeconfig, the files that it names, and what its plugin and its
issuer answer. The seed and a number determine which field or which bytes of one file are changed.
Of each example, `load` returns headers that HTTP can carry, or raises a `ClientConfigError` of one
line that names a field of a wrong type, within seconds and in bounded memory. No secret is in the
error or a log, no file is left, and a kubeconfig that was written can be read again.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import logging
import random
import re
import resource
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from sync.kube.api_errors import ClientConfigError
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority
from tests.fakeapi.kubeconfig import kubeconfig, plugin
from tests.fakeapi.tls import Pair
from tests.fuzz.run import chosen_seed
from tests.sync.kube.test_oidc import expired, token

CANARY = "canary4711"
#: The number of examples in a short run, whose seed stays the same, and in a long one.
SHORT, LONG = 400, 6_000
#: Seconds for one example on a busy machine, and kilobytes by which all of them grow the process.
MAX_SECONDS, MAX_GROWTH = 10.0, 150_000
#: Names and values of headers that HTTP can carry (RFC 9110).
_NAME, _VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"([!-~]([ -~]*[!-~])?)?")


def _nested(first: str, item: str, count: int) -> str:
    """A list in which each item refers to the one before."""
    items = [item.replace("*", f"*a{number - 1}") for number in range(1, count)]
    return f"[&a0 {first}" + "".join(f", &a{n} {it}" for n, it in enumerate(items, 1)) + "]"


def _lines(text: str) -> list[str]:
    return [value for line in text.strip().splitlines() for value in line.split(" | ")]


#: Values by type, as YAML; most of them are also JSON.
VALUES = {
    "null": ["null"],
    "bool": ["true", "false"],
    "number": ["0", "-1", "1e999", "1.5", ".nan", "9" * 4000, "0x" + "f" * 5000],
    "list": ["[]", "[null]", "[5]", "[[]]", "[{}]", f'["{CANARY}"]', "[" * 40 + "]" * 40],
    "map": ["{}", '{"a": 1}', '{"name": []}', '{"": ""}', r'{"\ud800": ["a"]}', r'{"a\n": []}'],
    "string": _lines(rf"""
"" | " " | " a" | "a\n" | "a\r\nX-Other: 1" | "é" | "=?" | "/" | "a:b" | "YQ==" | "!" | "\u2028"
"\u0000" | "\ud800" | "\udc80" | "\u007f" | "\ufeff" | "~" | "<<" | "=" | "y" | "1e3" | "0o17"
"12:30" | "2020-01-01" | "null" | "https://[::1" | "https://a:99999" | "file:///" | "https://\u0000"
"https://{"a" * 300}" | "https://é" | "{token(1e300)}" | "{token(-1e18)}" | "{"a" * 1_000_000}"
"e30.{base64.b64encode(b"[" * 100_000).decode()}.c2ln"
"""),
    "malformed": _lines(rf"""
*a | &a [*a] | &a {{b: *a}} | {{<<: 5}} | {{? [a] : b}} | {{? {{a: b}} : c}} | {{a: b: c}} | > | @
[ | ' | "\U00110000" | NaN | !x y | !!int '' | !!bool x | !!float '' | !!timestamp x | !!set {{a}}
!!timestamp 2020-01-01 | !!binary YQ== | !!binary é | !!omap [a: 1] | !!python/name:os.system
{"9" * 5000} | {{? 0x{"f" * 5000} : a}} | {"[" * 100_000} | {'{"a":' * 100_000}
{_nested("x", f"[{'*, ' * 9}]", 8)}
{_nested("{k: v}", f"{{<<: [{'*, ' * 9}]}}", 8)}
{_nested("x", "[" * 90 + "*" + "]" * 90, 40)}
"""),
}
#: Texts that are inserted into a file.
INSERTED = _lines(r"""
\x00 | \xff | \xed\xa0\x80 | \xe2\x80\xa8 | \xef\xbb\xbf | \t | \n | \r | : | :\x20 | ' | " | -\x20
# | { | } | [ | ] | &a\x20 | *a\x20 | !!binary\x20 | \n---\n | \n...\n | \n<<: {a: b}\n
%YAML 9.9\n---\n | -----BEGIN CERTIFICATE-----\n
""")
#: The fields of an issuer's answers that the bridge reads.
ANSWER_FIELDS = {"token_endpoint", "id_token", "refresh_token"}
#: Parts of a file's text that are replaced: a value, two kinds of keys, and the example's number.
VALUE, MERGE, AGAIN, NUMBER = "VALUE4711", "MERGE4711", "AGAIN4711", "NUMBER4711"

_NUMBERS = itertools.count()

#: Content by file name: bytes or a structure.
Files = dict[str, Any]


def corpus(folder: Path, authority: Authority, pair: Pair, issuer: str) -> list[Files]:
    """Valid examples, and as the last one a refresh token that the issuer rejects."""
    ca, cert, key = (path.read_bytes() for path in (authority.cert, pair.cert, pair.key))
    data = {"client-certificate-data": _base64(cert), "client-key-data": _base64(key)}
    command = plugin(folder / "plugin", 'exec /bin/cat "$1" </dev/null\n')["exec"] | {
        "command": "./plugin",
        "args": [str(folder / "answer")],
        "env": [{"name": "SECRET", "value": CANARY}],
        "provideClusterInfo": True,
    }
    answer = {"apiVersion": command["apiVersion"], "kind": "ExecCredential"}
    status = {"token": CANARY, "expirationTimestamp": "2030-01-01T00:00:00Z"}
    pem = {"clientCertificateData": cert.decode(), "clientKeyData": key.decode()}
    oidc = {
        "client-id": "bridge",
        "client-secret": CANARY,
        "idp-issuer-url": issuer,
        "refresh-token": f"{CANARY}-{NUMBER}",
        "id-token": expired(),
    }
    by_path, by_data = (
        {
            "auth-provider": {
                "name": "oidc",
                "config": oidc | {f"idp-certificate-authority{end}": value},
            }
        }
        for end, value in (("", "ca"), ("-data", _base64(ca)))
    )
    discovery = {"issuer": issuer, "token_endpoint": f"{issuer}/token"}
    issued = {"id_token": token(2e9), "refresh_token": f"{CANARY}-next-{NUMBER}"}
    rejected = {"error": "invalid_grant", "error_description": CANARY}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": ["a"]}}
    clusters: list[Any] = [
        {"certificate-authority": "ca", "disable-compression": True, "extensions": [extension]},
        {"certificate-authority": "ca", "tls-server-name": "api.test"},
        {"certificate-authority-data": _base64(ca), "proxy-url": f"http://u:{CANARY}@proxy.test:1"},
    ]
    extra = {"as-uid": "u", "as-groups": ["a"], "as-user-extra": {"example.com/a": ["b"]}}
    users: list[tuple[Any, Files]] = [
        ({"exec": command}, {"answer": answer | {"status": status}}),
        ({"exec": command}, {"answer": answer | {"status": pem}}),
        ({"exec": command}, {"answer": answer | {"status": status | pem}}),
        ({"token": CANARY}, {"second": {"preferences": {"colors": True}, "current-context": "b"}}),
        ({"tokenFile": "token"}, {"token": f"{CANARY}\n".encode()}),
        ({"username": "u", "password": CANARY}, {}),
        (data | {"as": "jane", **extra}, {}),
        ({"client-certificate": "cert", "client-key": "key"}, {"cert": cert, "key": key}),
        (by_data, {"discovery": discovery, "issued": issued}),
        (by_path, {"discovery": discovery, "issued": issued}),
        (by_path, {"discovery": discovery, "issued": rejected}),
    ]
    examples = []
    for number, (user, files) in enumerate(users):
        cluster = clusters[number % len(clusters)]
        config = kubeconfig("https://127.0.0.1:6443/a", user=user, cluster=cluster, context="y")
        examples.append({"config": config, "ca": ca, **files})
    examples[3]["second"]["users"] = examples[3]["config"].pop("users")
    return [{"config": kubeconfig("http://127.0.0.1:8080", user={"as": "jane"})}, *examples]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _encode(name: str, content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    if name not in ("config", "second"):
        return json.dumps(content).encode()
    # PyYAML does not know that kubectl reads a plain y as true.
    text = yaml.safe_dump(content, width=10**9)
    return re.sub(r": y$", ": 'y'", text, flags=re.MULTILINE).encode()


def _places(tree: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Each container of the tree with each of its keys, and the name of the field."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        field = key if isinstance(key, str) else name
        yield tree, key, field
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key], field)


def _change_field(rng: random.Random, name: str, content: Any) -> tuple[bytes, str, str]:
    """Changes one field. Returns the file, the field if its type is wrong, and a summary."""
    tree = copy.deepcopy(content)
    container, key, field = rng.choice(list(_places(tree)))
    types = {str: "string", bool: "bool", dict: "map", list: "list"}
    kind, expected = rng.choice(list(VALUES)), types[type(container[key])]
    value = rng.choice(VALUES[kind])
    how = rng.choice(["drop", "merge", "again", *["replace"] * 7])
    is_wrong = how == "replace" and kind not in ("null", "malformed", expected)
    if how == "drop":
        del container[key]
    elif how == "replace":
        container[key] = VALUE
    elif isinstance(container, dict):
        container[f"{AGAIN}{key}" if how == "again" else MERGE] = VALUE
    else:
        container.insert(key, copy.deepcopy(container[key]))
    text = _encode(name, tree).decode().replace(MERGE, "<<").replace(AGAIN, "")
    if name in ("config", "second"):
        text = text.replace(VALUE, value)
        is_wrong = is_wrong and field not in ("extension", "audience")
    else:
        text = text.replace(f'"{VALUE}"', value)
        is_wrong = is_wrong and value not in (".nan", VALUES["number"][-1])
        is_wrong = is_wrong and (name == "answer" or field in ANSWER_FIELDS)
    return text.encode(), field if is_wrong else "", f"{how} {field} in {name}: {value[:60]}"


def _change_bytes(rng: random.Random, content: bytes) -> bytes:
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(content) + 1)
        before, after = content[:start], content[start:]
        inserted = rng.choice(INSERTED).encode().decode("unicode_escape").encode("latin-1")
        inserted *= rng.choice([*[1] * 30, 20_000])
        line = rng.choice(content.split(b"\n"))
        removed = rng.choice([1, 4, 100, len(after)])
        changes = [rng.randbytes(1) + after[1:], inserted + after, after[removed:]]
        content = before + rng.choice([*changes, b"\n" + line + b"\n" + after])
    return content


def mutated(seed: int, number: int, examples: list[Files]) -> tuple[dict[str, bytes], str, str]:
    """The files of the example of this number, a field of a wrong type or "", and a summary."""
    rng = random.Random(f"{seed}:{number}")
    example = rng.choice(examples)
    changed = rng.choice(list(example))
    files = {name: _encode(name, content) for name, content in example.items()}
    field, summary = "", f"bytes of {changed}"
    if not isinstance(example[changed], bytes) and rng.random() < 0.7:
        files[changed], field, summary = _change_field(rng, changed, example[changed])
    else:
        files[changed] = _change_bytes(rng, files[changed])
    return files, field, f"seed {seed}, number {number}: {summary}"


class Judge:
    """Loads examples in one folder and collects the problems."""

    def __init__(
        self, folder: Path, examples: list[Files], key: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.folder, self.examples, self.caplog = folder, examples, caplog
        self.secrets = [CANARY, key.decode().split("\n")[1][:40], _base64(key)[60:100]]
        self.problems: list[str] = []
        self.accepted = 0

    async def check(self, files: dict[str, bytes], field: str, summary: str) -> None:
        kept = set(self.folder.iterdir())
        number = b"%d" % next(_NUMBERS)
        paths = [self.folder / name for name in files]
        for path in paths:
            # The process remembers what replaced a refresh token.
            path.write_bytes(files[path.name].replace(NUMBER.encode(), number))
        original = paths[0].read_bytes()
        self.caplog.clear()
        started = time.monotonic()
        headers, error = await self._load(paths)
        seconds = time.monotonic() - started
        message = str(error or "").replace(str(self.folder), "")
        shown = "".join(traceback.format_exception(error)) + repr(error) + self.caplog.text
        records = [record for record in self.caplog.records if record.name != "aiohttp.server"]
        found = {
            "another error": error is not None and not isinstance(error, ClientConfigError),
            "a header that cannot be sent": not all(
                _NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in headers or ()
            ),
            f"{seconds:.0f} seconds": seconds > MAX_SECONDS,
            "a message that is not one line": not message.isprintable() or len(message) > 1000,
            f"no {field} in the message": field and not re.search(rf"\b{field}\b(?!-)", message),
            "a secret": any(secret in shown for secret in self.secrets),
            "a logged error": any(record.levelno > 30 for record in records),
            "a file that is left": set(self.folder.iterdir()) != kept | set(paths),
        }
        if (written := paths[0].read_bytes()) != original:
            found["other users in the written kubeconfig"] = _users(written) != _users(original)
            again, _ = await self._load(paths) if headers else (None, None)
            found["a written kubeconfig that is broken"] = again != headers
        for path in paths:
            path.unlink()
        self.accepted += headers is not None
        self.problems += [
            f"{problem}: {summary}\n{shown[-1500:]}"
            for problem, is_true in found.items()
            if is_true
        ]

    async def _load(
        self, paths: list[Path]
    ) -> tuple[list[tuple[str, str]] | None, Exception | None]:
        """The headers, or the error."""
        files = [str(path) for path in paths if path.name in ("config", "second")]
        try:
            config = await load(KubeconfigRef(Path(":".join(files))), side="remote")
        except Exception as error:  # noqa: BLE001 - collects the problems of a run
            return None, error
        return config.credential.headers(), None

    async def fuzz(self, seed: int, count: int) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            await self.check(*mutated(seed, number, self.examples))
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert growth < MAX_GROWTH, f"memory has grown by {growth} kB with seed {seed}"
        assert not self.problems, "\n".join([f"{len(self.problems)} problems", *self.problems[:10]])


def _users(content: bytes) -> list[str]:
    return [entry["name"] for entry in next(yaml.load_all(content, yaml.BaseLoader))["users"]]


@pytest.fixture
async def judge(
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Judge]:
    """A judge whose folder also is that of temporary files, with an issuer over TLS."""
    folder = tmp_path / "example"
    folder.mkdir()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    caplog.set_level(logging.DEBUG)

    async def respond(request: web.Request) -> web.Response:
        name = "discovery" if request.method == "GET" else "issued"
        body = (folder / name).read_bytes()
        return web.Response(body=body, status=400 if b'"error"' in body else 200)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = authority.server_context(authority.issue("issuer", address="127.0.0.1"))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    pair, url = authority.issue("someone"), f"https://127.0.0.1:{runner.addresses[0][1]}"
    examples = corpus(folder, authority, pair, url)
    yield Judge(folder, examples, pair.key.read_bytes(), caplog)
    await runner.cleanup()


async def test_valid_examples_are_accepted(judge: Judge) -> None:
    for example in judge.examples:
        files = {name: _encode(name, content) for name, content in example.items()}
        await judge.check(files, "", "")
    assert (judge.problems, judge.accepted) == ([], len(judge.examples) - 1)


async def test_malformed_examples_are_rejected(judge: Judge) -> None:
    await judge.fuzz(0, SHORT)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_many_malformed_examples_are_rejected(judge: Judge) -> None:
    await judge.fuzz(chosen_seed(), LONG)
