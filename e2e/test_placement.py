"""PlacementPolicies place pods at home, then in a cheap remote, then in an expensive one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.placement_fleet import (
    RACK,
    TIERS,
    Fleet,
    deployment,
    joined,
    placed_namespace,
    placement_policy,
    pod,
    running_fleet,
)
from translators.placement.placement_policy import PolicyError, parse_policy, policy_for

LABEL = "cluster-bridge.io/placement"
#: Seconds until a bridge releases pods without a placer, with a margin.
ABSENT_SECONDS = 100.0
#: Seconds until the published room has no pods of an earlier test, with a margin.
PUBLISHED_SECONDS = 20.0


@pytest.fixture(scope="module")
def fleet(
    simulated: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A fleet of two virtual nodes with a placer."""
    with running_fleet(simulated, tmp_path_factory.mktemp("placement")) as found:
        yield found


@pytest.fixture
def namespace(fleet: Fleet) -> Iterator[str]:
    """A namespace with a policy."""
    with placed_namespace(fleet) as found:
        yield found


def test_tiers_are_filled_in_order(fleet: Fleet, namespace: str) -> None:
    """Home, cheap, expensive; a simulation answers the same before."""
    web = deployment("web", namespace, 40, 6)
    file = fleet.folder / "web.json"
    file.write_text(json.dumps(web))
    simulate = ("placement", "simulate", "-f", file, "-o", "json")

    def answers() -> bool:
        [answer] = json.loads(bridge_process.run(*simulate, home=fleet.home).stdout)["workloads"]
        found = answer["placed"], answer["waiting"]
        return bool(found == ({"home": 1, "cheap": 2, "expensive": 2}, 1))

    wait_for(answers, "a simulation fills the tiers", seconds=PUBLISHED_SECONDS)
    fleet.apply(web)
    fleet.wait_for_places(namespace, home=1, cheap=2, expensive=2, waiting=1)
    list_them = ("placement", "list", "-o", "json")
    listed = json.loads(bridge_process.run(*list_them, home=fleet.home).stdout)
    assert listed["policies"][0]["pods"] == {"home": 1, "cheap": 2, "expensive": 2}


def test_policy_and_placer_show_what_they_do(fleet: Fleet, namespace: str) -> None:
    """In the status of the policy, and to those who may read the metrics."""

    def line() -> list[str]:
        columns = fleet.home.kubectl("get", "placementpolicy", namespace, "--no-headers").stdout
        return columns.split()

    wait_for(lambda: line()[-5:-3] == ["True", "Active"], "the policy is Ready")
    fleet.apply(pod("a", namespace, 1))
    fleet.wait_for_places(namespace, home=1)
    nowhere = {"name": "nowhere", "remotes": {"matchLabels": {"class": "none"}}}
    fleet.policy(namespace, tiers=[nowhere])
    wait_for(lambda: line()[-5:-2] == ["False", "NoCandidate", "1"], "no tier has a candidate")
    policy = get_one(fleet.home, "placementpolicy", namespace)
    assert policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
    fleet.policy(namespace)
    ready = ("wait", "--for=condition=Ready", f"placementpolicy/{namespace}", "--timeout=60s")
    fleet.home.kubectl(*ready)

    assert fleet.monitored("/livez") == fleet.monitored("/readyz") == (200, "ok")
    assert fleet.monitored("/metrics")[0] == 401
    for account in ("reader", "stranger"):
        fleet.home.kubectl("create", "serviceaccount", account, "-n", namespace)
    role = ("clusterrole", f"{namespace}-metrics")
    fleet.home.kubectl("create", *role, "--verb=get", "--non-resource-url=/metrics")
    bound = (f"--clusterrole={role[1]}", f"--serviceaccount={namespace}:reader")
    fleet.home.kubectl("create", "clusterrolebinding", role[1], *bound)
    try:
        code, text = fleet.monitored("/metrics", _token(fleet, namespace, "stranger"))
        assert (code, "may not get /metrics" in text) == (403, True)
        token = _token(fleet, namespace, "reader")
        wait_for(lambda: fleet.monitored("/metrics", token)[0] == 200, "home permits the reader")
        _, text = fleet.monitored("/metrics", token)
        assert 'bridge_placement_leader{lease="cluster-bridge/placement"} 1.0' in text
        placed = f'bridge_placement_placed_total{{place="(home)",policy="{namespace}"}} 1.0'
        assert placed in text, text
    finally:
        fleet.home.kubectl("delete", "clusterrole,clusterrolebinding", role[1])


def _token(fleet: Fleet, namespace: str, account: str) -> str:
    return fleet.home.kubectl("create", "token", account, "-n", namespace).stdout.strip()


def test_api_server_rejects_policies_without_a_selection(fleet: Fleet) -> None:
    """Just those that the placer would ignore, while the API server held all pods for them."""
    empty: Json = {"namespaces": [], "priorityClasses": [], "podSelector": {}}
    cases: list[tuple[Json, bool]] = [
        ({}, False),
        ({"namespaceSelector": {}}, False),
        ({"namespaces": ["a"]}, True),
        ({"priorityClasses": ["a"]}, True),
        ({"podSelector": {"matchLabels": {"a": "b"}}}, True),
        ({"namespaceSelector": {"matchExpressions": []}}, True),
    ]
    for more, is_valid in cases:
        policy = placement_policy("probe", {"tiers": TIERS, **empty, **more})
        create = ("create", "--dry-run=server", "-f", "-")
        done = fleet.home.kubectl(*create, input=json.dumps(policy), check=False)
        assert (done.returncode == 0, _is_valid(policy)) == (is_valid, is_valid), done.stderr
        assert is_valid or "one of namespaces, namespaceSelector" in done.stderr


def _is_valid(policy: Json) -> bool:
    try:
        parse_policy(policy)
    except PolicyError:
        return False
    return True


def test_pod_that_fits_no_node_waits_until_one_has_room(fleet: Fleet, namespace: str) -> None:
    """Two nodes with 64 free CPUs each are no room for a pod of 100."""
    huge = [pod(f"huge{it}", namespace, 500) for it in range(50)]
    fleet.apply(pod("big", namespace, 100), *huge)
    fleet.apply(pod("small", namespace, 1))
    fleet.wait_for_places(namespace, home=1, waiting=51)
    worker = get(fleet.remote, "nodes", selector="pool=cheap")[0]
    resize = ("patch", "node", worker["metadata"]["name"], "--subresource=status", "-p")
    _set_cpu(fleet, resize, "128")
    try:
        fleet.wait_for_places(namespace, home=1, cheap=1, waiting=50)
    finally:
        _set_cpu(fleet, resize, "64")


def _set_cpu(fleet: Fleet, resize: tuple[str, ...], cpu: str) -> None:
    status = {"allocatable": {"cpu": cpu}, "capacity": {"cpu": cpu}}
    fleet.remote.kubectl(*resize, json.dumps({"status": status}))


def test_pod_that_one_remote_refuses_goes_to_the_next(fleet: Fleet, namespace: str) -> None:
    """Cheap's nodes lack the label by which the pod is spread."""
    fleet.policy(namespace, tiers=TIERS[1:])
    spread = {
        "topologyKey": RACK,
        "maxSkew": 5,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    fleet.apply(deployment("spread", namespace, 1, 1, topologySpreadConstraints=[spread]))
    wait_for(lambda: fleet.places(namespace)["expensive"] == 1, "the pod runs in the next remote")
    pods = fleet.pods(namespace).values()
    assert {it["status"].get("reason") for it in pods} >= {"RemoteUnschedulable"}


def test_pods_are_released_without_a_placer(fleet: Fleet, namespace: str) -> None:
    """Meanwhile, the API server holds exactly the pods that a policy is for."""
    fleet.kill_placer()
    try:
        fleet.apply(pod("a", namespace, 1))
        assert fleet.pods(namespace)["a"]["metadata"]["labels"][LABEL] == "pending"
        _compare_held_pods(fleet, namespace)
        wait_for(
            lambda: is_ready(fleet.pods(namespace)["a"]),
            "a bridge releases the pod",
            seconds=ABSENT_SECONDS,
        )
        wait_for(lambda: _messages(fleet, namespace, "NoPlacerRuns"), "the bridge reports that")
    finally:
        fleet.start_placer()


def _compare_held_pods(fleet: Fleet, namespace: str) -> None:
    """Compares the admission policy with `policy_for` for several policies and pods."""
    labels = {"team": "blue", "stage": "test"}
    fleet.home.kubectl("label", "ns", namespace, *(f"{k}={v}" for k, v in labels.items()))
    blue = {"matchLabels": {"team": "blue"}}
    other = {"key": "stage", "operator": "NotIn", "values": ["prod"]}
    app = {"key": "app", "operator": "In", "values": ["a", "b"]}
    specs: list[Json] = [
        {"namespaceSelector": blue, "podSelector": {"matchLabels": {"app": "a"}}},
        {"namespaceSelector": {"matchExpressions": [other]}, "namespaces": ["elsewhere"]},
        {"namespaces": ["elsewhere"]},
        {"namespaces": ["elsewhere"], "namespaceSelector": {}},
        {"namespaces": [namespace], "podSelector": {"matchExpressions": [app]}},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}, other]}},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
        {"namespaces": [namespace], "priorityClasses": ["system-node-critical"]},
    ]
    pod_labels: list[dict[str, str]] = [{}, {"app": "a"}, {"app": "c", "stage": "prod"}]
    for spec in specs:
        changed = placement_policy(namespace, {"tiers": TIERS, **spec})
        fleet.home.kubectl("replace", "-f", "-", input=json.dumps(changed))
        pods = [pod("probe", namespace, 1) for _ in pod_labels]
        for one, its in zip(pods, pod_labels, strict=True):
            one["metadata"]["labels"] = its
        namespace_labels = get_one(fleet.home, "ns", namespace)["metadata"]["labels"]
        parsed = [parse_policy(changed)]
        expected = [policy_for(it, parsed, namespace_labels) is not None for it in pods]
        _wait_until_held(fleet, pods, expected, f"pods for {spec}")


def _wait_until_held(fleet: Fleet, pods: list[Json], expected: list[bool], what: str) -> None:
    try:
        wait_for(lambda: _held(fleet, pods) == expected, f"{what}: {expected}", seconds=20)
    except AssertionError as error:
        raise AssertionError(f"{error}, not {_held(fleet, pods)}") from None


def _held(fleet: Fleet, pods: list[Json]) -> list[bool]:
    create = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    made = [json.loads(fleet.home.kubectl(*create, input=json.dumps(it)).stdout) for it in pods]
    return [bool(it["spec"].get("schedulingGates")) for it in made]


def test_remote_is_not_passed_over_before_its_room_is_published(
    fleet: Fleet, namespace: str
) -> None:
    """A quota keeps the bridge from publishing; a later tier has room."""
    late = {"name": "late", "remotes": {"matchLabels": {"class": "late"}}}
    fleet.policy(namespace, tiers=[late, TIERS[2]])
    quota = ("quota", "none", "-n", "cluster-bridge")
    last = get(fleet.remote, "nodes")[-1]["metadata"]["name"]
    fleet.remote.kubectl("label", "node", last, "pool=late", "--overwrite")
    fleet.home.kubectl("create", *quota, "--hard=count/configmaps=0")
    try:
        with joined(fleet.home, fleet.remote, "late", fleet.folder):
            wait_for(
                lambda: any(map(is_ready, get(fleet.home, "nodes", selector="class=late"))),
                "the virtual node is Ready",
            )
            fleet.apply(pod("a", namespace, 1))
            wait_for(lambda: _messages(fleet, namespace, "WaitingForPlacement"), "the pod waits")
            [message] = _messages(fleet, namespace, "WaitingForPlacement")
            assert "late: its bridge has not published the remote's room yet" in message
            assert "expensive: tier late comes first" in message
            assert fleet.places(namespace) == {"": 1}
    finally:
        fleet.home.kubectl("delete", *quota)


def _messages(fleet: Fleet, namespace: str, reason: str) -> list[str]:
    events = get(fleet.home, "events", namespace=namespace)
    return [it["message"] for it in events if it["reason"] == reason]


def test_policy_decides_within_the_limits_of_offloading(fleet: Fleet, namespace: str) -> None:
    """In whichever order the API server evaluates both admission policies."""
    offload = ("offload", namespace, "--by", "policy", "--policy")
    done = bridge_process.run(*offload, "remote-only", home=fleet.home)
    assert f"PlacementPolicy {namespace} decides for pods of namespace" in done.stderr
    try:
        fleet.apply(pod("remote", namespace, 1))
        fleet.wait_for_places(namespace, cheap=1)
        explain = ("explain", "pod/remote", "-n", namespace, "-o", "json")
        answer = json.loads(bridge_process.run(*explain, home=fleet.home).stdout)
        assert answer["decidedBy"].startswith(f"PlacementPolicy {namespace}, within the limits of")
        assert "is offloaded remote-only" in answer["policy"]["candidates"]["home"]

        fleet.policy(namespace, tiers=TIERS[1:])
        done = bridge_process.run(*offload, "local-only", home=fleet.home)
        assert "has no tier with home" in done.stderr
        fleet.apply(pod("local", namespace, 1))
        wait_for(lambda: _messages(fleet, namespace, "WaitingForPlacement"), "the pod waits")
        fleet.policy(namespace)
        own = next(it for it in get(fleet.home, "nodes") if "class" not in it["metadata"]["labels"])
        wait_for(
            lambda: fleet.places(namespace) == {"cheap": 1, own["metadata"]["name"]: 1},
            "the pod runs at home",
        )
    finally:
        bridge_process.run("unoffload", namespace, home=fleet.home)
