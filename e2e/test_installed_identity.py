"""An installed bridge that is the node at home: its replicas share one certificate in a Secret."""

from __future__ import annotations

import json

from e2e import bridge_process
from e2e.bench.pods.audit_log import Requests
from e2e.installed_bridge import Install
from e2e.kubectl import Json, get, is_ready, uids, wait_for
from e2e.workload_manifests import busybox

#: Each replica logs this when it begins to use a certificate.
_SIGNED = "the certificate of the node's identity is signed by home, valid until"


def requests(it: Install) -> list[Json]:
    """The requests for the node's identity."""
    prefix = f"kubelet-client-{it.node}-"
    found = get(it.home, "certificatesigningrequests")
    return [request for request in found if request["metadata"]["name"].startswith(prefix)]


def logs(it: Install) -> list[str]:
    """The logs of the bridges' pods."""
    names = uids(it.bridges())
    return [it.home.kubectl("logs", "-n", it.place, name).stdout for name in names]


def certificate(it: Install) -> str:
    found: str = (it.state_secret.get("data") or {}).get("client.pem", "")
    return found


def is_narrow(it: Install) -> bool:
    """Whether the ServiceAccount lacks the permissions to act in place of the node."""
    user = f"system:serviceaccount:{it.place}:cluster-bridge-{it.node}"
    review = ("auth", "can-i", "delete", "pods", "--all-namespaces", "--as", user)
    return it.home.kubectl(*review, check=False).stdout.strip() == "no"


def serves(it: Install, name: str) -> None:
    """A new pod runs, with logs and exec through the bridge's pod."""
    text = busybox(it.node, name, "echo it runs; sleep 3600")
    it.home.kubectl("apply", "-n", it.namespace, "-f", "-", input=text)
    ready = ("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
    it.home.kubectl(*ready, "-n", it.namespace)
    assert it.home.kubectl("logs", "-n", it.namespace, name).stdout == "it runs\n"
    executed = it.home.kubectl("exec", "-n", it.namespace, name, "--", "echo", "hello")
    assert executed.stdout == "hello\n"


def leaves_nothing(it: Install) -> None:
    left = it.leave()
    assert left.returncode == 0, left.stderr
    assert not it.objects()
    assert not requests(it)
    assert it.node not in uids(get(it.home, "nodes"))
    wait_for(lambda: it.place not in uids(get(it.home, "namespaces")), "its namespace was deleted")


def test_replicas_of_an_installation_are_the_node_with_one_certificate(
    installing: Install,
) -> None:
    it = installing
    assert it.home.audit_log is not None
    audit = Requests(it.home.audit_log)
    done = it.install("--yes")
    assert done.returncode == 0, done.stderr
    assert [is_ready(pod) for pod in it.bridges()] == [True, True]
    assert all("home: the bridge acts as node" in log for log in logs(it))
    [request] = requests(it)
    account = f"system:serviceaccount:{it.place}:cluster-bridge-{it.node}"
    assert request["spec"]["username"] == account
    assert is_narrow(it)
    assert set(it.state_secret["data"]) == {"client.pem"}
    serves(it, "one")
    # The clusters' audit policy leaves out requests of nodes, such as those for pods.
    by_account = {str(one) for one in audit.all() if one.user == account}
    assert "create certificatesigningrequests" in by_account
    # The selection of the network looks for a pod with each address that it reached in the remote.
    assert {one for one in by_account if " pods" in one} <= {"list pods"}
    checked = bridge_process.run("check", it.node, "-o", "json", home=it.home)
    found = {one["id"]: one for one in json.loads(checked.stdout)["findings"]}
    assert found["BRG206"]["found"].startswith(f"the bridge is system:node:{it.node}")
    assert f"Secret {it.place}/bridge-state-{it.node}" in found["BRG206"]["found"]

    # Each of the replicas is replaced: the leader too. The certificate stays.
    before = certificate(it)
    for name in uids(it.bridges()):
        it.home.kubectl("delete", "pod", "-n", it.place, name)
        wait_for(lambda: [is_ready(pod) for pod in it.bridges()] == [True, True], "two are ready")
    assert certificate(it) == before
    assert len(requests(it)) == 1
    assert all("its certificate is stored" in log for log in logs(it))
    serves(it, "two")

    # A certificate that is lost is renewed by the node; both replicas use the new one.
    role = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
    binding = ("clusterrolebinding", f"{it.node}-renewal")
    user = f"system:node:{it.node}"
    it.home.kubectl("create", *binding, f"--clusterrole={role}", f"--user={user}")
    patch = json.dumps({"data": {"client.pem": None}})
    secret = ("secret", f"bridge-state-{it.node}", "-n", it.place)
    it.home.kubectl("patch", *secret, "--type=merge", "-p", patch)
    wait_for(lambda: certificate(it) not in ("", before), "another certificate is stored")
    wait_for(lambda: all(_SIGNED in log for log in logs(it)), "both replicas use it")
    assert len(requests(it)) == 2
    assert {one["spec"]["username"] for one in requests(it)} == {account, user}
    it.home.kubectl("delete", *binding)
    serves(it, "three")

    again = it.install()
    assert again.returncode == 0, again.stderr
    assert "is up to date" in again.stderr, "the identity is kept without a question"
    leaves_nothing(it)


def test_bridge_that_is_its_account_becomes_the_node_by_an_upgrade(installing: Install) -> None:
    it = installing
    done = it.install("--replicas", "1")
    assert done.returncode == 0, done.stderr
    assert not is_narrow(it)
    assert not requests(it)
    serves(it, "one")
    [pod] = get(it.remote, "pods", namespace=it.remote_namespace)
    upgraded = it.upgrade("--home-identity", "node", "--yes")
    assert upgraded.returncode == 0, upgraded.stderr
    assert is_narrow(it)
    wait_for(lambda: len(it.bridges()) == 1, "the previous pod was deleted")
    [log] = logs(it)
    assert "home: the bridge acts as node" in log
    [same] = get(it.remote, "pods", namespace=it.remote_namespace)
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    serves(it, "two")
    leaves_nothing(it)
