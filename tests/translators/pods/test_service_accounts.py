"""Service account tokens of remote pods."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import objects
from tests.translators.golden import HOME_API, IDENTITY
from tests.translators.strategies import NESTED
from translators.object_accessors import Object, uid_of
from translators.pods import remote_pod, service_accounts
from translators.pods.service_accounts import CA_KEY, TokenTimes
from translators.translation_options import Policy, ServiceAccounts

_SOURCES = st.one_of(
    st.builds(
        lambda audience, seconds, path: {
            "serviceAccountToken": {
                key: value
                for key, value in (
                    ("audience", audience),
                    ("expirationSeconds", seconds),
                    ("path", path),
                )
                if value is not None
            }
        },
        st.sampled_from([None, "", "vault"]),
        st.sampled_from([None, 600, 3607]),
        st.sampled_from(["token", "a/b"]),
    ),
    st.sampled_from(
        [
            {"configMap": {"name": "kube-root-ca.crt"}},
            {"configMap": {"name": "settings"}},
            {"secret": {"name": "key"}},
        ]
    ),
)
_VOLUMES = st.lists(st.lists(_SOURCES, min_size=1, max_size=3), max_size=3)


def _home(volumes: list[list[Object]], **spec: Any) -> Object:
    home = objects.pod("asks", "shop", node="burst")
    named = [
        {"name": f"v{number}", "projected": {"sources": sources}}
        for number, sources in enumerate(volumes)
    ]
    home["spec"] |= {"volumes": named, "serviceAccountName": "clerk", **spec}
    home["metadata"]["uid"] = "5f0f3ac1-7d52-4a3b-9f55-0c6d6f1f9e77"
    return home


def _remote(home: Object, mode: ServiceAccounts) -> Object:
    policy = Policy(IDENTITY, "10.20.0.5", service_accounts=mode, home_api=HOME_API)
    spec: Object = remote_pod.translate_pod(home, policy).pod["spec"]
    return spec


def _sources(spec: Object) -> list[Object]:
    return [it for volume in spec.get("volumes", ()) for it in volume["projected"]["sources"]]


@given(volumes=_VOLUMES)
def test_home_mode_reads_every_token_from_the_pods_secret(volumes: list[list[Object]]) -> None:
    home = _home(volumes)
    before = copy.deepcopy(home)
    needs = service_accounts.required_tokens(home)
    read = {
        item["key"]: item
        for source in _sources(_remote(home, "home"))
        if source.get("secret", {}).get("name") == service_accounts.token_secret_name(uid_of(home))
        for item in source["secret"]["items"]
    }

    assert home == before
    assert set(read) - {CA_KEY} == {wanted.key for wanted in needs.tokens}
    assert (CA_KEY in read) == needs.needs_ca


@given(volumes=_VOLUMES, mode=st.sampled_from(["home", "none"]))
def test_no_token_of_the_remote_is_mounted(
    volumes: list[list[Object]], mode: ServiceAccounts
) -> None:
    spec = _remote(_home(volumes), mode)

    assert not any("serviceAccountToken" in source for source in _sources(spec))
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec


@given(volumes=_VOLUMES)
def test_remote_mode_uses_tokens_of_the_remote(volumes: list[list[Object]]) -> None:
    home = _home(volumes)
    spec = _remote(home, "remote")

    assert _sources(spec) == _sources(home["spec"])
    assert spec["serviceAccountName"] == "clerk"


@pytest.mark.parametrize(("security", "mode"), [({}, None), ({"fsGroup": 7}, 0o600)])
def test_fs_group_restricts_the_token_mode(security: Object, mode: int | None) -> None:
    home = _home([[{"serviceAccountToken": {"path": "token"}}]], securityContext=security)
    ((source,),) = [it["projected"]["sources"] for it in _remote(home, "home")["volumes"]]

    assert source["secret"]["items"][0].get("mode") == mode


def test_token_secret_records_pod_and_times() -> None:
    home = _home([[{"serviceAccountToken": {"path": "token"}}]])
    (wanted,) = service_accounts.required_tokens(home).tokens
    times = {wanted.key: TokenTimes("2030-01-01T00:48:00Z", "2030-01-01T01:00:00Z")}
    made = service_accounts.token_secret(home, IDENTITY, {wanted.key: "abc"}, times)

    assert service_accounts.pod_of_token_secret(made) == service_accounts.pod_ref_of(home)
    assert service_accounts.parse_token_times(made) == times
    assert service_accounts.pod_of_token_secret(objects.secret("key")) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", '{"k": 1}', '{"k": ["a"]}'),
        *(f'{{"k": ["a", {nested}, "b"]}}' for nested in NESTED),
    ],
)
def test_invalid_token_times_are_ignored(text: str) -> None:
    secret = objects.secret("key", data={"k": "YQ=="})
    secret["metadata"]["annotations"] = {service_accounts.ANNOTATION_TOKEN_TIMES: text}

    assert service_accounts.parse_token_times(secret) == {}
