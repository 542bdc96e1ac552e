"""`bridge join --in-cluster` and `bridge render`: what was asked for becomes an installation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.base.printable_text import escape_line
from bridge.base.settings import JoinSettings, SettingsError, check_network
from bridge.base.version import version
from bridge.cli.passed_options import REFUSED, flag
from bridge.cli.runner import STOP_SECONDS, awaited, fail, run, step
from bridge.install import apply, manifests, rollout, self_contained_kubeconfig
from bridge.install.names import Installation
from bridge.install.self_contained_kubeconfig import SelfContainedKubeconfig
from bridge.preflight.cluster_facts import connected, explained
from bridge.rbac.manifests import HomeRights, check_namespace
from sync.kube.errors import ClientConfigError
from translators.identity import dns_label


@dataclass(frozen=True, slots=True)
class Wish:
    """What the options say."""

    settings: JoinSettings
    given: Mapping[str, Sequence[str]]
    """Options of `bridge join` by name, as they were written."""
    image: str | None
    namespace: str
    replicas: int
    bound: Sequence[str]
    everywhere: bool
    webhook: bool
    relay_from: Sequence[str]
    dry: bool
    timeout: float


def show(wish: Wish) -> None:
    """Prints the objects as YAML."""
    from bridge.cli.rbac import print_objects

    wanted, kubeconfig = _wanted(wish)
    print_objects(manifests.render(wanted, kubeconfig.text))
    _say(f"node {wanted.node}: the Secret holds the remote's credential; keep this YAML secret")


def install(wish: Wish) -> None:
    """Applies them at home, and waits until the node is Ready."""
    wanted, kubeconfig = _wanted(wish)
    run(
        lambda _: _install(wish, wanted, kubeconfig),
        stops=False,
        end_by=STOP_SECONDS,
    )


async def _install(wish: Wish, wanted: Installation, kubeconfig: SelfContainedKubeconfig) -> None:
    async with connected(wish.settings.home, side="home", told=step) as home:
        with explained("home"):
            done = await apply.apply(
                home,
                manifests.render(wanted, kubeconfig.text),
                node=wanted.node,
                dry_run=wish.dry,
                report=step,
            )
        changed = sum(change != "unchanged" for change, _ in done)
        where = f"{wanted.namespace}/{wanted.name}"
        if wish.dry:
            step(f"home: {changed} objects of {where} would change; nothing was changed")
            return
        if not changed:
            step(f"home: {where} is as it should be")
        with explained("home"):
            await rollout.wait_until_ready(home, wanted, timeout=wish.timeout, report=awaited)
    step(f"home: node {wanted.node} is Ready; `bridge leave --name {wanted.node}` removes it")
    if not (wanted.bound_namespaces or wanted.all_namespaces):
        _say(
            "pods of a namespace run when it is bound: bridge rbac namespace NAME --account "
            f"{wanted.account} | kubectl apply -f -"
        )


def check_relay_from(who: str) -> str:
    """A namespace, or a network. Raises SettingsError."""
    return check_network(who, "--relay-from") if "/" in who else check_namespace(who)


def _wanted(wish: Wish) -> tuple[Installation, SelfContainedKubeconfig]:
    """The installation, and the remote's kubeconfig. Ends the command where it cannot be."""
    settings = wish.settings
    for name, why in REFUSED.items():
        if name in wish.given:
            raise fail(f"{flag(name)} is of no use in home's cluster: {why}", code=2)
    if wish.bound and wish.everywhere:
        raise fail("--bind and --all-namespaces exclude each other", code=2)
    if wish.relay_from and settings.network not in ("relay", "auto"):
        raise fail("--relay-from is of use with --network relay or auto only", code=2)
    if not settings.port:
        raise fail("--port 0 is of no use in home's cluster: each pod has all its ports", code=2)
    try:
        for namespace in (wish.namespace, *wish.bound):
            check_namespace(namespace)
        relay_from = tuple(map(check_relay_from, wish.relay_from))
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    try:
        kubeconfig = self_contained_kubeconfig.build(settings.remote)
    except ClientConfigError as error:
        raise fail(str(error)) from None
    for note in kubeconfig.notes:
        _say(note)
    node = settings.name or dns_label(kubeconfig.context)
    rights = HomeRights(
        nodes=[node],
        service_accounts=settings.service_accounts,
        serving=settings.serving,
        network=settings.network,
    )
    wanted = Installation(
        node=node,
        image=wish.image or f"cluster-bridge:{version()}",
        permissions=rights,
        arguments=[word for words in wish.given.values() for word in words],
        namespace=wish.namespace,
        replicas=wish.replicas,
        bound_namespaces=tuple(wish.bound),
        all_namespaces=wish.everywhere,
        port=settings.port,
        offload_webhook=wish.webhook,
        relay_from=relay_from,
    )
    return wanted, kubeconfig


def _say(line: str) -> None:
    import sys

    print(escape_line(line), file=sys.stderr)
