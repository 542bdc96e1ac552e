"""The dashboard in home's cluster: home decides who reads it.

It runs from the bridge's image with the rendered permissions. `kubectl port-forward` reaches it,
and a real browser signs in with a token. ``CLUSTER_BRIDGE_SCREENSHOTS=FOLDER`` keeps pictures.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bridge.dashboard.dashboard_manifests import NAME
from e2e import bridge_process, browser, used_permissions
from e2e.browser import Browser
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, is_ready, wait_for
from e2e.kubectl_streams import forwarded
from e2e.workload_manifests import pod, shell

VIEWER, STRANGER = used_permissions.VIEWER, "stranger"
SCREENSHOTS = "CLUSTER_BRIDGE_SCREENSHOTS"


@dataclass
class Installed:
    """A dashboard at home."""

    home: Cluster
    place: str
    url: str = ""

    def kubectl(self, *args: str) -> str:
        """Runs kubectl in the dashboard's namespace."""
        return self.home.kubectl(*args, "-n", self.place).stdout

    def token(self, account: str) -> str:
        """A new token of a ServiceAccount."""
        return self.kubectl("create", "token", account, "--duration=10m").strip()

    def code(self, path: str, **headers: str) -> int:
        """The status of a request, without following redirects."""
        return asyncio.run(self._code(path, headers))

    async def _code(self, path: str, headers: dict[str, str]) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"{self.url}{path}", headers=headers, ssl=False, allow_redirects=False
            ) as answer,
        ):
            return answer.status


@contextmanager
def installed(bridged: Bridged, image: str) -> Iterator[Installed]:
    """The dashboard, with a viewer and a ServiceAccount without a permission."""
    home, place = bridged.home, f"seen-{bridged.namespace}"
    render = ("dashboard-server", "render", "--image", image, "--namespace", place)
    rendered = bridge_process.run(*render, "--node", bridged.node).stdout
    found = Installed(home, place)
    try:
        home.kubectl("apply", "-f", "-", input=rendered)
        for account in (VIEWER, STRANGER):
            found.kubectl("create", "serviceaccount", account)
        subject = f"--serviceaccount={place}:{VIEWER}"
        found.kubectl("create", "rolebinding", "see", f"--role={NAME}-viewer", subject)
        found.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=120s")
        with forwarded(home, place, f"service/{NAME}", 443, env={}) as (_, port):
            found.url = f"https://localhost:{port}"
            yield found
        print(found.kubectl("logs", f"deployment/{NAME}"))
    finally:
        home.kubectl("delete", "-f", "-", "--wait=false", input=rendered)


def test_home_decides_who_reads_the_dashboard(bridged: Bridged, loaded: str) -> None:
    bridged.apply(pod(bridged.node, "web", containers=[shell("main", "sleep 3600")]))
    with installed(bridged, loaded) as it:
        [running] = get(it.home, "pods", namespace=it.place)
        assert is_ready(running)
        strict = "pod-security.kubernetes.io/enforce=restricted"
        warnings = it.home.kubectl("label", "namespace", it.place, strict, "--dry-run=server")
        assert "Warning" not in warnings.stderr
        _check_requests(it)
        asyncio.run(_check_page(it, bridged))
        _check_withdrawal(it)
        _check_permissions(it, bridged)


def _check_requests(it: Installed) -> None:
    for path in ("/api/v1/pods", "/api/v1/live", "/api/v1/fleet", "/main.js"):
        assert it.code(path) == 401
        assert it.code(path, Authorization="Bearer nonsense") == 401
        assert it.code(path, Authorization=f"Bearer {it.token(STRANGER)}") == 403
    assert it.code("/") == 303
    assert it.code("/api/v1/pods", Authorization=f"Bearer {it.token(VIEWER)}") == 200


async def _check_page(it: Installed, bridged: Bridged) -> None:
    async with browser.opened() as page:
        await page.ignore_certificate_errors()
        await page.resize(1440, 900)
        await page.go(f"{it.url}/")
        await page.until("location.pathname === '/sign-in'")
        _keep("sign-in.png", await page.picture())
        await _sign_in(page, it.token(STRANGER))
        await page.until("document.querySelector('[role=alert]') !== null")
        assert "does not permit you" in await page.evaluate("document.body.innerText")
        page.complaints.clear()  # the response 403 is one
        await _sign_in(page, it.token(VIEWER))
        row = "[...document.querySelectorAll('.row')].find((it) => it.textContent.includes('web'))"
        await page.until(f"location.pathname === '/' && {row} !== undefined")
        card = f"document.querySelector('[data-name={bridged.node}]')"
        await page.until(f"{card} !== null && !/unknown|not queried/.test({card}.textContent)")
        assert VIEWER in await page.evaluate("document.querySelector('.viewer').textContent")
        assert await page.evaluate("document.cookie") == "", "scripts cannot read it"
        _keep("in-cluster.png", await page.picture())
        # Home denies this viewer Events, which the dashboard does not read in their place.
        await page.evaluate(f"{row}.click()")
        await page.until("document.getElementById('tab-events') !== null")
        await page.evaluate("document.getElementById('tab-events').click()")
        await page.until("/cannot list|forbidden/.test(document.body.innerText)")
        assert [it for it in page.complaints if "403" not in it] == []
        await page.press("Escape")
        await page.evaluate("document.querySelector('.sign-out button').click()")
        await page.until("location.pathname === '/sign-in'")
        await page.go(f"{it.url}/")
        await page.until("location.pathname === '/sign-in'")


def _keep(name: str, picture: bytes) -> None:
    if folder := os.environ.get(SCREENSHOTS):
        Path(folder, name).write_bytes(picture)


async def _sign_in(page: Browser, token: str) -> None:
    await page.evaluate("document.getElementById('token').focus()")
    await page.type(token)
    await page.press("Enter")


def _check_withdrawal(it: Installed) -> None:
    token = it.token(VIEWER)
    assert it.code("/api/v1/pods", Authorization=f"Bearer {token}") == 200
    it.kubectl("delete", "rolebinding", "see")
    wait_for(lambda: it.code("/api/v1/pods", Authorization=f"Bearer {token}") == 403, "denied")
    it.kubectl("delete", "serviceaccount", VIEWER)
    wait_for(lambda: it.code("/api/v1/pods", Authorization=f"Bearer {token}") == 401, "invalid")


def _check_permissions(it: Installed, bridged: Bridged) -> None:
    """The account may do nothing beyond the table."""
    account = f"system:serviceaccount:{it.place}:{NAME}"

    def may(verb: str, resource: str, *args: str) -> bool:
        review: Json = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": account,
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": {"verb": verb, "resource": resource, "version": "v1"},
            },
        }
        attributes = review["spec"]["resourceAttributes"]
        attributes |= dict(zip(("subresource", "name"), args, strict=False))
        command = ("create", "-f", "-", "-o", "json")
        done = it.home.kubectl(*command, input=json.dumps(review))
        return bool(json.loads(done.stdout)["status"]["allowed"])

    assert may("get", "nodes", "proxy", bridged.node)
    for denied in (
        ("get", "nodes", "proxy"),
        ("create", "nodes", "proxy", bridged.node),
        ("get", "secrets"),
        ("list", "events"),
        ("patch", "nodes"),
        ("create", "pods"),
        ("create", "pods", "exec"),
        ("get", "pods", "log"),
    ):
        assert not may(*denied), denied
