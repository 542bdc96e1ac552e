"""`bridge install`: the bridge runs in the home cluster, from its image, with or without a webhook,
and leaves again."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.installed_bridge import Install
from e2e.kubectl import Json, get, get_one, is_ready, uids, versions, wait_for
from e2e.workload_manifests import busybox


def is_refused_elsewhere(it: Install) -> None:
    """A second installation, in another namespace, is rejected and creates nothing."""
    elsewhere = it.install("--namespace", f"{it.place}-b")
    assert elsewhere.returncode == 1
    assert f"is installed in namespace {it.place} (" in elsewhere.stderr
    assert f"{it.place}-b" not in uids(get(it.home, "namespaces"))


@pytest.mark.core
def test_installation_is_created_changed_and_removed(installing: Install) -> None:
    it = installing
    joined = it.install()
    assert joined.returncode == 0, joined.stderr
    assert f"node {it.node} is Ready" in joined.stderr
    assert is_ready(get_one(it.home, "node", it.node))
    assert [is_ready(pod) for pod in it.bridges()] == [True, True]
    # No privilege too many: the server would warn about pods that the restricted standard forbids.
    strict = "pod-security.kubernetes.io/enforce=restricted"
    warnings = it.home.kubectl("label", "namespace", it.place, strict, "--dry-run=server")
    assert "Warning" not in warnings.stderr

    # A pod bursts; logs and exec go through the bridge's pod.
    command = "echo it runs; sleep 3600"
    it.home.kubectl("apply", "-n", it.namespace, "-f", "-", input=busybox(it.node, "one", command))
    it.home.kubectl("wait", "-n", it.namespace, "--for=condition=Ready", "pod/one", "--timeout=60s")
    assert it.home.kubectl("logs", "-n", it.namespace, "one").stdout == "it runs\n"
    executed = it.home.kubectl("exec", "-n", it.namespace, "one", "--", "echo", "hello")
    assert executed.stdout == "hello\n"

    # Joining again changes nothing, and prints no secret; nor does an upgrade to the same version.
    before = versions([*it.objects()])
    bridges = uids(it.bridges())
    for again in (it.install(), it.upgrade()):
        assert again.returncode == 0, again.stderr
        assert "is up to date" in again.stderr
    after = versions(it.objects())
    changed = {key[0] for key, version in after.items() if before[key] != version}
    by_controllers = {"Deployment", "PodDisruptionBudget", "ValidatingAdmissionPolicy"}
    assert changed <= by_controllers, "but for their status"
    assert uids(it.bridges()) == bridges

    # Another option: confirmed first, then rolled out without effect on the pod.
    uid = uids(it.remote_pods())
    dry = it.upgrade("--share", "0.5", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "would be changed: spec.template.spec.containers[0].args" in dry.stderr
    assert uids(it.bridges()) == bridges
    is_refused_elsewhere(it)
    assert uids(it.bridges()) == bridges
    whole = int(get_one(it.home, "node", it.node)["status"]["allocatable"]["pods"])
    rolled = it.upgrade("--share", "0.5")
    assert rolled.returncode == 0, rolled.stderr
    old = set(bridges.values())
    wait_for(
        lambda: not old & set(uids(it.bridges()).values()), "the previous bridges were deleted"
    )
    half = int(get_one(it.home, "node", it.node)["status"]["allocatable"]["pods"])
    assert half == whole // 2
    assert uids(it.remote_pods()) == uid
    assert it.home.kubectl("logs", "-n", it.namespace, "one").stdout == "it runs\n"

    left = it.leave()
    assert left.returncode == 0, left.stderr
    assert not it.objects()
    assert it.node not in uids(get(it.home, "nodes"))
    wait_for(lambda: it.place not in uids(get(it.home, "namespaces")), "its namespace was deleted")
    ours = f"cluster-bridge.io/node={it.node}"
    kinds = "pods,configmaps,secrets,services,endpointslices"
    wait_for(
        lambda: not get(it.remote, kinds, selector=ours, all_namespaces=True),
        "no managed object is left in the remote",
    )


def test_installed_bridges_keep_their_renewed_token_in_the_state_secret(
    installing: Install, tmp_path: Path
) -> None:
    """A bridge that starts again begins with it: the kubeconfig's own token is nearly expired."""
    it, own = installing, Account("default", installing.node)
    short = service_accounts.granted(
        *(it.remote, tmp_path, *service_accounts.REMOTE_ARGUMENTS),
        account=own,
        token_options=service_accounts.SHORT_LIVED,
    )
    try:
        joined = replace(it, remote=short).install("--replicas", "1")
        assert joined.returncode == 0, joined.stderr

        def kept() -> Json:
            data = it.state_secret.get("data") or {}
            found: Json = json.loads(base64.b64decode(data.get("renewed-token", "e30=")))
            return found

        renewed = wait_for(kept, "the renewed token is kept")
        [first] = uids(it.bridges())
        it.home.kubectl("delete", "pod", "-n", it.place, first)
        wait_for(lambda: [is_ready(pod) for pod in it.bridges()] == [True], "another serves")
        [second] = uids(it.bridges())
        log = it.home.kubectl("logs", "-n", it.place, second).stdout
        assert f"is valid until {renewed['expires']}, and the bridge renews it" in log
        assert kept() == renewed

        again = replace(it, remote=short).install("--replicas", "1")
        assert "is up to date" in again.stderr, "installing again keeps the token"
        assert kept() == renewed
        left = it.leave()
        assert left.returncode == 0, left.stderr
    finally:
        service_accounts.take_away(it.remote, own)


def test_obstacles_of_an_installation_are_reported_and_it_can_leave(installing: Install) -> None:
    """An image that does not exist, without a tag: a server defaults to pull such an image always,
    which must not stay. Then a bridge that ends by itself; the node is never created."""
    it = installing
    relayed = ("--network", "relay", "--relay-from", it.namespace, "--relay-from", "10.0.0.0/16")
    nowhere = it.install("--image", "NO/image", "--replicas", "1", "--timeout", "30", *relayed)
    assert nowhere.returncode == 1
    assert "ErrImagePull: " in nowhere.stderr
    assert "--image names another" in nowhere.stderr

    assert json.dumps(it.objects()).count("NO/image") == 1
    [policy] = get(it.home, "networkpolicies", namespace=it.place)
    _, clients = policy["spec"]["ingress"]
    named = {"matchLabels": {"kubernetes.io/metadata.name": it.namespace}}
    assert clients["from"] == [
        {"namespaceSelector": named},
        {"ipBlock": {"cidr": "10.0.0.0/16"}},
    ]
    invalid = ("--namespace-template", "{nothing}", "--network", "flat")
    failed = it.install("--replicas", "2", *invalid, "--timeout", "110")
    assert failed.returncode == 1
    assert "error: --namespace-template" in failed.stderr
    assert get(it.home, "networkpolicies", namespace=it.place) == [], "there is no relay any more"
    running = [pod for pod in it.bridges() if pod["status"]["phase"] == "Running"]
    assert running, "they crash, and are started again"
    for pod in running:
        it.evict(pod)

    left = it.leave()
    assert left.returncode == 0, left.stderr
    assert not it.objects()


def test_installed_webhook_changes_pods_of_offloaded_namespaces(installing: Install) -> None:
    """Home's API server reaches the webhook by its Service. A stopped replica leaves no pod
    unchanged; a killed one delays no pod."""
    it = installing
    joined = it.install("--offload-webhook")
    assert joined.returncode == 0, joined.stderr
    assert [is_ready(pod) for pod in it.webhooks()] == [True, True]
    strict = "pod-security.kubernetes.io/enforce=restricted"
    warnings = it.home.kubectl("label", "namespace", it.place, strict, "--dry-run=server")
    assert "Warning" not in warnings.stderr
    assert not it.is_changed(), "nothing is offloaded yet"

    chosen = ("--policy", "remote-only", "--node-selector", f"kubernetes.io/hostname={it.node}")
    # These API servers have MutatingAdmissionPolicy, which is preferred by default.
    done = bridge_process.run("offload", it.namespace, "--by", "webhook", *chosen, home=it.home)
    assert done.returncode == 0, done.stderr
    listed = bridge_process.run("offload", "-o", "json", home=it.home)
    mine = [
        found
        for found in json.loads(listed.stdout)["namespaces"]
        if found["namespace"] == it.namespace
    ]
    assert [(found["policy"], found["by"]) for found in mine] == [("remote-only", "webhook")]
    it.new_pod("one")
    it.home.kubectl("wait", "-n", it.namespace, "--for=condition=Ready", "pod/one", "--timeout=60s")
    assert get_one(it.home, "pod", "one", namespace=it.namespace)["spec"]["nodeName"] == it.node

    # Installing again keeps what the replicas have written.
    again = it.install("--offload-webhook")
    assert again.returncode == 0, again.stderr
    assert "is up to date" in again.stderr

    # After a graceful stop no pod is missed.
    first, second = uids(it.webhooks())
    it.home.kubectl("delete", "pod", "-n", it.place, first, "--wait=false")
    nodes = []
    while first in uids(it.webhooks()):
        nodes.append(it.is_changed())
    assert nodes
    assert all(nodes)
    wait_for(lambda: [is_ready(pod) for pod in it.webhooks()] == [True, True], "another is there")
    killed = ("delete", "pod", "-n", it.place, second, "--grace-period=0", "--force")
    it.home.kubectl(*killed)
    wait_for(it.is_changed, "the other replica answers")

    undone = bridge_process.run("unoffload", it.namespace, home=it.home)
    assert undone.returncode == 0, undone.stderr
    wait_for(lambda: not it.is_changed(), "new pods are made as they are")
    left = it.leave()
    assert left.returncode == 0, left.stderr
    assert not it.objects()
    wait_for(lambda: it.place not in uids(get(it.home, "namespaces")), "its namespace was deleted")
