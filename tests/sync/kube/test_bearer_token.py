"""Tokens are read without trust in what they contain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sync.kube import bearer_token
from tests.fakeapi.account_tokens import account_token, jwt

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_account_token_states_account_lifetime_and_audiences() -> None:
    found = bearer_token.account_token(account_token(START, HOUR))
    assert found is not None
    assert (found.namespace, found.name, str(found)) == (
        "cluster-bridge",
        "cluster-bridge",
        "ServiceAccount cluster-bridge/cluster-bridge",
    )
    assert (found.expires, found.lifetime, found.audiences) == (START + HOUR, HOUR, ("api",))
    assert found.bound_to is None


def test_token_of_a_secret_never_expires() -> None:
    found = bearer_token.account_token(account_token())
    assert found is not None
    assert (found.expires, found.lifetime) == (None, timedelta())


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (
            {"secret": {"name": "s", "uid": "1"}},
            {"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "1"},
        ),
        (
            {"pod": {"name": "p", "uid": "2"}, "node": {"name": "n", "uid": "3"}},
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "2"},
        ),
        ({"serviceaccount": {"name": "a", "uid": "4"}}, None),
        ({"secret": "s"}, None),
        ("s", None),
    ],
)
def test_bound_object_is_that_of_the_token_request(claim: Any, expected: Any) -> None:
    found = bearer_token.account_token(account_token(START, HOUR, **{"kubernetes.io": claim}))
    assert found is not None
    assert found.bound_to == expected


@pytest.mark.parametrize(
    "token",
    [
        "",
        "opaque",
        "a.b.c",
        "a.!.c",
        jwt([]),
        jwt({"sub": "someone"}),
        jwt({"sub": "system:serviceaccount:only"}),
        jwt({"sub": 7}),
    ],
)
def test_other_tokens_are_not_of_an_account(token: str) -> None:
    assert bearer_token.account_token(token) is None


@pytest.mark.parametrize("exp", ["soon", None, 1e300, [], float("-inf")])
def test_expiry_of_another_type_is_unknown(exp: object) -> None:
    assert bearer_token.expiry(jwt({"exp": exp})) is None
