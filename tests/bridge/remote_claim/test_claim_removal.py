"""Commands inspect a claim that a bridge renews at the same time."""

from __future__ import annotations

from bridge.election.election_lease import election_lease_name
from bridge.node import lease_namespace
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.remote_claim import claim_removal
from bridge.remote_claim.claim_place import ClaimPlaces
from bridge.remote_claim.claim_record import (
    ANNOTATION_CLAIM,
    ANNOTATION_RECORD,
    claim_lease_name,
    new_claim_id,
)
from sync.kube.api_resources import LEASES
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault, LoggedRequest
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="home-1", home_name="home", node="remote")


async def inspected_while_renewed(
    home_api: FakeApi, remote_api: FakeApi, client_for: ClientFor, *, recorded: bool
) -> str:
    """The objection to a claim that is renewed just before it is read; ``recorded`` at home first,
    as a bridge of this home does."""
    claim = new_claim_id()

    def write(sequence: int, *, home: bool = True) -> None:
        leases = [(remote_api, claim_lease_name(IDENTITY), LEASE_NAMESPACE, ANNOTATION_CLAIM)]
        if home:
            name = election_lease_name(IDENTITY.node)
            leases.insert(0, (home_api, name, lease_namespace.NAMESPACE, ANNOTATION_RECORD))
        for api, name, namespace, annotation in leases:
            meta = {"name": name, "namespace": namespace}
            spec = {"holderIdentity": "bridge"}
            annotations = {annotation: f"{sequence} {claim}"}
            api.put(LEASES.manifest({**meta, "annotations": annotations}, spec=spec))

    def renew(entry: LoggedRequest) -> bool:
        write(2, home=recorded)
        return False

    write(1)
    remote_api.fail(Fault("GET", "*/leases/*", when=renew))
    home, remote = await client_for(home_api, "home"), await client_for(remote_api)
    found, objection = await claim_removal.inspect_claim(home, remote, IDENTITY, ClaimPlaces())
    assert found is not None
    assert found.sequence == 2
    return objection


async def test_renewal_between_both_reads_is_no_objection(
    home_api: FakeApi, remote_api: FakeApi, client_for: ClientFor
) -> None:
    assert await inspected_while_renewed(home_api, remote_api, client_for, recorded=True) == ""


async def test_renewal_that_home_has_not_recorded_is_an_objection(
    home_api: FakeApi, remote_api: FakeApi, client_for: ClientFor
) -> None:
    why = await inspected_while_renewed(home_api, remote_api, client_for, recorded=False)
    assert why == "it was renewed after the state that this home is in"
