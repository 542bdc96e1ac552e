"""The options of a join that the Node records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.node import join_record
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.objects import node
from tests.sync.engine_harness import ADDRESS, IDENTITY, NODE
from translators.object_accessors import HomeNamespace, Object
from translators.translation_options import ClusterReads, PodMetadata, Policy


def _node(record: str) -> Object:
    recorded = node(NODE)
    recorded["metadata"]["annotations"] = {join_record.ANNOTATION_OPTIONS: record}
    return recorded


def test_protection_of_the_remotes_nodes_is_recorded() -> None:
    policy = Policy(
        IDENTITY,
        ADDRESS,
        pod_security="baseline",
        control_plane_nodes="allow",
        pod_metadata=PodMetadata(("example.com/*",), ("istio.io/rev", "linkerd.io/*")),
    )
    recorded = _node(join_record.encode_policy(policy))
    read, is_recorded = join_record.read_policy(recorded, IDENTITY.home_id)
    settings = join_record.read_settings(
        recorded, home=KubeconfigRef(), remote=KubeconfigRef(), network="auto"
    )
    assert is_recorded
    for found in (read, settings):
        assert found.pod_security == "baseline"
        assert found.control_plane_nodes == "allow"
        assert found.pod_metadata == policy.pod_metadata


def test_reads_of_the_whole_remote_and_its_identities_are_recorded() -> None:
    policy = Policy(IDENTITY, ADDRESS, cluster_reads=ClusterReads(nodes=False, pods=False))
    recorded = _node(join_record.encode_policy(policy, remote_ids=("a" * 16, "b" * 16)))
    read, _ = join_record.read_policy(recorded, IDENTITY.home_id)
    assert read.cluster_reads == policy.cluster_reads
    assert join_record.remote_ids(recorded) == ("a" * 16, "b" * 16)
    for record in ("{}", '{"clusterReads":"nodes","remoteIds":1}'):
        assert join_record.cluster_reads(_node(record)) == ClusterReads()
        assert join_record.remote_ids(_node(record)) == ()


@pytest.mark.parametrize(
    "record",
    [
        "{}",
        '{"podSecurity":"x","controlPlaneNodes":1,"podMetadata":{"a":"x","b":1}}',
        '{"podMetadata":["*"]}',
    ],
)
def test_record_without_these_options_has_the_defaults(record: str) -> None:
    read, _ = join_record.read_policy(_node(record), IDENTITY.home_id)
    assert (read.pod_security, read.control_plane_nodes) == ("privileged", "deny")
    assert read.pod_metadata == PodMetadata()


@pytest.mark.parametrize(
    "record",
    [
        "[" * 100_000,
        f'{{"unschedulableTimeout":{"9" * 400}}}',
        f'{{"unschedulableTimeout":{"9" * 5000}}}',
        '{"namespaceTemplate":"{x}"}',
        '{"namespaceTemplate":"{0}"}',
        '{"namespaceTemplate":"{home"}',
        '{"namespaceTemplate":"{namespace:>9999999999}"}',
        '{"namespaceTemplate":"fixed"}',
    ],
    ids=["nested", "large", "digits", "field", "index", "brace", "width", "no namespace"],
)
def test_value_that_no_join_writes_counts_as_absent(record: str) -> None:
    read, _ = join_record.read_policy(_node(record), IDENTITY.home_id)
    assert read.identity.remote_namespace(HomeNamespace("shop")) == f"shop-{IDENTITY.home_id[:8]}"
    assert read.unschedulable_timeout is None


@pytest.mark.parametrize("template", ["{namespace}", "x-{home}-{namespace}"])
def test_namespace_template_is_recorded(template: str) -> None:
    identity = replace(IDENTITY, namespace_template=template)
    recorded = _node(join_record.encode_policy(Policy(identity, ADDRESS)))
    settings = join_record.read_settings(
        recorded, home=KubeconfigRef(), remote=KubeconfigRef(), network="auto"
    )
    assert settings.template == template
