"""The server block for the remote's CoreDNS: which names it rewrites, and what the page shows."""

from __future__ import annotations

import re

import pytest

from e2e import server_block
from e2e.docs.generated_pages import DOCS
from translators.object_accessors import HomeNamespace
from translators.virtual_node_identity import Identity

DEFAULT_TEMPLATE = "{namespace}-{home}"
TEMPLATES = (DEFAULT_TEMPLATE, "{home}-{namespace}", "a-{namespace}-{home}-z")


def identity(template: str = DEFAULT_TEMPLATE, home: str = "e2e") -> Identity:
    return Identity("0123456789abcdef", home, "burst", template)


def block_of(identity: Identity, domain: str = "cluster.local") -> str:
    """The server block for this namespace template and home name."""
    marked = identity.namespace_template.format(namespace=" ", home=identity.home_name)
    prefix, suffix = marked.split(" ")
    return server_block.server_block(prefix, suffix, domain)


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
    block, there = block_of(identity(template)), identity(template).remote_namespace
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
        "shop.svc.cluster.local.",
    ],
)
def test_other_names_stay(template: str, name: str) -> None:
    there = identity(template).remote_namespace(HomeNamespace("shop"))
    given = name.replace("{there}", there)
    assert resolved(block_of(identity(template)), given) == given


def test_a_namespace_whose_remote_name_is_cut_stays() -> None:
    block = block_of(identity())
    for length, is_mapped in ((59, True), (60, False), (63, False)):
        given = f"web.{'n' * length}.svc.cluster.local."
        assert (resolved(block, given) != given) is is_mapped, length
        there = identity().remote_namespace(HomeNamespace("n" * length))
        assert not is_mapped or f"web.{there}.svc.cluster.local." == resolved(block, given)


def test_the_remotes_cluster_domain_is_that_of_the_option() -> None:
    block = block_of(identity(), "remote.internal")
    assert "\nremote.internal:53 {\n" in block
    assert resolved(block, "web.shop.svc.remote.internal.") == "web.shop-e2e.svc.remote.internal."
    assert resolved(block, "web.shop.svc.cluster.local.") == "web.shop.svc.cluster.local."
    assert "kubernetes remote.internal {" in block


def test_each_template_has_a_view_of_its_own() -> None:
    views = {
        re.findall(r"view (\S+) ", block_of(identity(template)))[0] for template in TEMPLATES[:2]
    }
    assert len(views | {re.findall(r"view (\S+) ", block_of(identity(home="b")))[0]}) == 3


def test_the_page_shows_the_block_of_the_default_template() -> None:
    page = (DOCS / "how-to" / "names-of-services.md").read_text("utf-8")
    block = block_of(identity()).partition("names-of-services.md explains the placeholders.\n")[2]
    shown = "".join(line.removeprefix("   ") for line in page.splitlines(keepends=True))
    assert block in shown
    assert "manifests/coredns-server-block.conf" in page
