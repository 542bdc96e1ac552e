"""`bridge status`, `dashboard` and the node's page; Events and a drain by kubectl.

A real browser opens the page through home's API server (`kubectl proxy`). With
``CLUSTER_BRIDGE_SCREENSHOT=FILE`` a screenshot is kept: docs/images/status.png is one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import bridge_process, browser, command_terminal
from e2e.bridge_process import BRIDGE
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.workload_manifests import pod, shell

#: Markup that a user may write into the status of a Node.
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
SCREENSHOT = "CLUSTER_BRIDGE_SCREENSHOT"


def bridge(bridged: Bridged, *args: str | Path, code: int = 0) -> str:
    """Runs a command with home's kubeconfig; its standard output."""
    done = bridge_process.run(*args, home=bridged.home)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def status(bridged: Bridged, *args: str | Path) -> Json:
    """The status of the node, as JSON."""
    (found,) = json.loads(bridge(bridged, "status", bridged.node, "-o", "json", *args))["nodes"]
    status: Json = found
    return status


def own(bridged: Bridged) -> Json:
    """The bridge's status page, without a command."""
    path = f"/api/v1/nodes/{bridged.node}/proxy/bridge/v1/status"
    found: Json = json.loads(bridged.home.kubectl("get", "--raw", path).stdout)
    return found


@contextmanager
def proxied(bridged: Bridged) -> Iterator[str]:
    """`kubectl proxy`; the URL of the node's port."""
    command = (bridged.home.kubectl_path, f"--kubeconfig={bridged.home.kubeconfig}", "proxy")
    with subprocess.Popen([*command, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
            assert found
            yield f"http://{found[0]}/api/v1/nodes/{bridged.node}/proxy"
        finally:
            process.terminate()


def test_status_pages_events_and_drain_of_a_node(bridged: Bridged) -> None:
    requests = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    runs = [shell("main", "sleep 3600", resources=requests)]
    bridged.apply(pod(bridged.node, "web", containers=runs))
    bridged.apply(pod(bridged.node, "reads-the-node", hostPID=True))
    wait_for(lambda: own(bridged)["pods"]["byPhase"]["Running"] == 1, "the pod runs")
    wait_for(lambda: _refused(bridged, own(bridged)), "the other is refused")

    _assert_complete_status(bridged)
    _events(bridged)
    with proxied(bridged) as url:
        asyncio.run(_the_page(bridged, url))
    _watched_on_a_terminal(bridged)
    _page_at_this_machine(bridged)
    _out_of_use(bridged)


def _refused(bridged: Bridged, found: Json) -> list[Json]:
    """The test's own pods: DaemonSets of home may have a rejected pod on every node."""
    return [it for it in found["pods"]["refusedPods"] if it["namespace"] == bridged.namespace]


def _assert_complete_status(bridged: Bridged) -> None:
    found = status(bridged)
    assert found["ready"] is True
    assert found["bridge"]["role"] == "leader"
    assert found["bridge"]["clusters"]["remote"]["watched"]
    (refused,) = _refused(bridged, found)
    assert (refused["name"], refused["reason"]) == ("reads-the-node", "FieldRefused")
    assert found["pods"]["refused"] == len(found["pods"]["refusedPods"])
    assert own(bridged).keys() == found.keys()
    text = bridge(bridged, "status")
    assert f"{bridged.node}: Ready\n" in text
    assert "\n    cpu: 0.1 of " in text
    assert f"{bridged.namespace}/reads-the-node: FieldRefused" in text
    assert "\x1b" not in text
    (name,) = bridged.home.node_names
    bridge(bridged, "status", name, code=1)


def _events(bridged: Bridged) -> None:
    def there() -> bool:
        return {"Started", "FieldRefused"} <= {
            it["reason"] for it in get(bridged.home, "events", namespace=bridged.namespace)
        }

    wait_for(there, "events of both clusters are at home")

    def shown(*selection: str) -> str:
        return bridged.home.kubectl("get", "events", "-A", "-o", "wide", *selection).stdout

    of_remote = shown("-l", f"cluster-bridge.io/node={bridged.node}")
    assert "Started" in of_remote
    assert "FieldRefused" not in of_remote
    of_bridge = shown("--field-selector", "source=cluster-bridge")
    assert "FieldRefused" in of_bridge
    assert f"cluster-bridge, {bridged.node}" in of_bridge
    assert "Started" not in of_bridge
    of_pod = bridged.kubectl("events", "--for", "pod/web")
    assert "Scheduled" in of_pod
    assert "Started" in of_pod
    of_node = bridged.home.kubectl("events", "-n", "default", "--for", f"node/{bridged.node}")
    assert "No events" not in of_node.stdout + of_node.stderr


async def _the_page(bridged: Bridged, url: str) -> None:
    """In a browser, and as home's API server proxies it."""
    node = get_one(bridged.home, "node", bridged.node)
    seconds = node["status"]["conditions"][0]["lastTransitionTime"]
    condition = {"type": "example.com/Hostile", "status": "True", "reason": "Hostile"}
    times = {"lastHeartbeatTime": seconds, "lastTransitionTime": seconds}
    patch = {"status": {"conditions": [{**condition, **times, "message": HOSTILE}]}}

    async with browser.opened() as page:
        # Without the slash it redirects to the folder below the same path.
        await page.go(f"{url}/bridge")
        assert await page.evaluate("location.pathname.endsWith('/proxy/bridge/')")
        shown = await page.evaluate("document.body.innerText")
        for words in (bridged.node, "usable nodes", "not created in the remote", "serves the node"):
            assert words in shown
        _kept(await page.picture())
        await page.evaluate("window.same = true")

        bridged.home.kubectl(
            "patch", "node", bridged.node, "--subresource=status", "-p", json.dumps(patch)
        )
        bridged.kubectl("delete", "pod", "reads-the-node")
        await page.until("document.body.innerText.includes('onerror')")
        await page.until("!document.body.innerText.includes('reads-the-node')")
        assert await page.evaluate("window.same"), "it has renewed itself in place"
        assert HOSTILE in await page.evaluate("document.body.innerText")
        assert await page.evaluate("document.title") == f"{bridged.node}: Ready"
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.complaints == []

        # The Content-Security-Policy would stop injected scripts.
        await page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x>')")
        script = "document.createElement('script')"
        await page.evaluate(
            f"(s => (s.textContent = 'window.owned = true', document.body.append(s)))({script})"
        )
        assert not await page.evaluate("window.owned")
        assert any("Content Security Policy" in it for it in page.complaints), page.complaints

        await page.go(f"{url}/bridge/v1/status")
        data = json.loads(await page.evaluate("document.body.innerText"))
        assert data["name"] == bridged.node


def _kept(picture: bytes) -> None:
    assert picture.startswith(b"\x89PNG")
    if file := os.environ.get(SCREENSHOT):
        Path(file).write_bytes(picture)


def _watched_on_a_terminal(bridged: Bridged) -> None:
    command = (BRIDGE, "status", bridged.node, "--watch")
    with command_terminal.opened(command, {"KUBECONFIG": str(bridged.home.kubeconfig)}) as shown:
        end = shown.wait_for_text(f"{bridged.node}: Ready")
        assert "\x1b[" in shown.raw
        assert "├──" in shown.text
        bridged.home.kubectl("cordon", bridged.node)
        shown.wait_for_text("Ready,SchedulingDisabled", after=end)
        bridged.home.kubectl("uncordon", bridged.node)
        assert shown.interrupt() == 0
    assert "Traceback" not in shown.text

    env = {"KUBECONFIG": str(bridged.home.kubeconfig), "NO_COLOR": "1"}
    with command_terminal.opened((BRIDGE, "status", bridged.node), env) as plain:
        plain.wait_for_text("the remote's kubelets")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain.raw)


def _page_at_this_machine(bridged: Bridged) -> None:
    command = (BRIDGE, "dashboard", bridged.node, "--no-open")
    with command_terminal.opened(command, {"KUBECONFIG": str(bridged.home.kubeconfig)}) as shown:
        shown.wait_for_text("until Ctrl-C")
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", shown.text)
        assert found

        async def look() -> None:
            async with browser.opened() as page:
                await page.go(found[0])
                text = "document.body.innerText"
                await page.until(f"{text}.includes({json.dumps(bridged.node)})")
                # The bridge, home's pods, and an explanation that reads from both clusters.
                await page.until("document.querySelector('.row')?.textContent.includes('web')")
                await page.until(
                    "document.querySelector('[data-series=started] .line[d^=M]') !== null"
                )
                # The condition of the bridge's own page is still there.
                assert HOSTILE in await page.evaluate(f"{text}.replaceAll('\\n', ' ')")
                assert await page.evaluate("document.title.includes('cluster-bridge')")
                await page.evaluate("document.querySelector('.row').click()")
                await page.until("document.querySelector('.summary')?.textContent.includes('runs')")
                assert page.complaints == []

        asyncio.run(look())
        assert shown.interrupt() == 0


def _out_of_use(bridged: Bridged) -> None:
    bridged.home.kubectl("cordon", bridged.node)
    wait_for(lambda: own(bridged)["cordoned"], "the bridge knows")
    drain = ("drain", bridged.node, "--force", "--ignore-daemonsets", "--timeout=60s")
    bridged.home.kubectl(*drain)
    assert not bridged.home_pods()
    assert not bridged.remote_pods()
    bridged.home.kubectl("uncordon", bridged.node)
