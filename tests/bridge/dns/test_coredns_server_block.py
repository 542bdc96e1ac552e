"""The server block with which home's names resolve in the remote: which names it rewrites."""

from __future__ import annotations

import re

import pytest

from bridge.base.join_settings import SettingsError
from bridge.dns.coredns_server_block import DnsError, check_domain, server_block
from translators.object_accessors import HomeNamespace
from translators.virtual_node_identity import Identity

DEFAULT_TEMPLATE = "{namespace}-{home}"
TEMPLATES = (DEFAULT_TEMPLATE, "{home}-{namespace}", "a-{namespace}-{home}-z")


def identity(template: str = DEFAULT_TEMPLATE, home: str = "e2e") -> Identity:
    return Identity("0123456789abcdef", home, "burst", template)


def resolved(block: str, name: str) -> str:
    """The name that CoreDNS looks up for a query by the rules of the block: the first that matches
    counts (plugin/rewrite)."""
    for kind, pattern, target in re.findall(r"name (exact|regex) (\S+) (\S+)", block):
        if kind == "exact":
            if name == f"{pattern}.":
                return f"{target}."
        elif found := re.search(pattern, name):
            for number, group in enumerate(found.groups(), start=1):
                target = target.replace(f"{{{number}}}", group or "")  # noqa: PLW2901
            return str(target)
    return name


def is_client(block: str, namespace: str) -> bool:
    """Whether pods of the namespace use the block."""
    (pattern,) = re.findall(r"client-namespace'\) matches '(\S+)'", block)
    return re.search(pattern, namespace) is not None


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", ["web", "web-0.web", "_http._tcp.web"])
def test_a_name_with_homes_namespace_is_resolved_in_the_mapped_one(
    template: str, name: str
) -> None:
    block, there = server_block(identity(template)), identity(template).remote_namespace
    mapped = there(HomeNamespace("shop"))
    assert (
        resolved(block, f"{name}.shop.svc.cluster.local.") == f"{name}.{mapped}.svc.cluster.local."
    )
    assert is_client(block, mapped)
    assert not is_client(block, "shop")
    assert not is_client(block, "kube-system")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "name",
    [
        "web.{there}.svc.cluster.local.",
        "web.shop.{there}.svc.cluster.local.",  # a search domain after web.shop
        "1-2-3-4.{there}.pod.cluster.local.",
        "kubernetes.default.svc.cluster.local.",
        "web.shop.svc.svc.example.",
        "example.com.",
        "web.shop.svc.cluster.local.example.com.",
        "web.shop.svcXcluster.local.",
        "shop.svc.cluster.local.",
    ],
)
def test_other_names_stay(template: str, name: str) -> None:
    there = identity(template).remote_namespace(HomeNamespace("shop"))
    given = name.replace("{there}", there)
    assert resolved(server_block(identity(template)), given) == given


def test_a_namespace_whose_remote_name_is_cut_stays() -> None:
    block = server_block(identity())
    for length, is_mapped in ((59, True), (60, False), (63, False)):
        given = f"web.{'n' * length}.svc.cluster.local."
        assert (resolved(block, given) != given) is is_mapped, length
        there = identity().remote_namespace(HomeNamespace("n" * length))
        assert not is_mapped or f"web.{there}.svc.cluster.local." == resolved(block, given)


def test_the_remotes_cluster_domain_is_that_of_the_option() -> None:
    block = server_block(identity(), "remote.internal")
    assert block.splitlines()[1] == "remote.internal:53 {"
    assert resolved(block, "web.shop.svc.remote.internal.") == "web.shop-e2e.svc.remote.internal."
    assert resolved(block, "web.shop.svc.cluster.local.") == "web.shop.svc.cluster.local."
    assert "kubernetes remote.internal {" in block


def test_each_template_has_a_view_of_its_own() -> None:
    views = {re.findall(r"view (\S+) ", server_block(identity(it)))[0] for it in TEMPLATES[:2]}
    assert len(views | {re.findall(r"view (\S+) ", server_block(identity(home="b")))[0]}) == 3


@pytest.mark.parametrize(
    ("template", "home", "message"),
    [
        ("{namespace}", "e2e", "keeps home's namespaces .* no server block is needed"),
        ("{namespace}-{namespace}", "e2e", "more than once"),
        ("{home}", "e2e", "namespace is missing|{namespace} is missing"),
        (DEFAULT_TEMPLATE, "h" * 62, "every remote name is cut"),
        (DEFAULT_TEMPLATE, "x.*) y\n}", "lower case letters"),
        ("{namespace}-{home}\n", "e2e", "lower case letters|characters that no namespace has"),
    ],
)
def test_templates_without_a_server_block_are_rejected(
    template: str, home: str, message: str
) -> None:
    with pytest.raises(DnsError, match=message):
        server_block(identity(template, home))


@pytest.mark.parametrize("domain", ["", "a b", "x}", ".", "a..b", "UPPER.local", "x\ny"])
def test_an_invalid_cluster_domain_is_rejected(domain: str) -> None:
    with pytest.raises(SettingsError, match="--cluster-domain"):
        check_domain(domain)
    assert check_domain("remote.internal") == "remote.internal"
