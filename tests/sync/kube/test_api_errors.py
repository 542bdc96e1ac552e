"""Error classes of responses, and their messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync.kube import api_errors
from sync.kube.api_errors import ApiError, KubeError, from_status

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def status(code: int, reason: str = "", message: str = "", **more: Any) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, **more}


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", api_errors.BadRequest),
        (401, "Unauthorized", api_errors.Unauthorized),
        (403, "Forbidden", api_errors.Forbidden),
        (404, "NotFound", api_errors.NotFound),
        (405, "MethodNotAllowed", ApiError),
        (409, "Conflict", api_errors.Conflict),
        (409, "AlreadyExists", api_errors.AlreadyExists),
        (410, "Gone", api_errors.Gone),
        (410, "Expired", api_errors.Gone),
        (422, "Invalid", api_errors.Invalid),
        (429, "TooManyRequests", api_errors.Throttled),
        (500, "InternalError", api_errors.ServerError),
        (503, "ServiceUnavailable", api_errors.ServerError),
        (504, "Timeout", api_errors.ServerError),
    ],
)
def test_class_by_code_and_reason(code: int, reason: str, expected: type[ApiError]) -> None:
    error = from_status(status(code, reason), code=code, side="home", what="GET /x")
    assert type(error) is expected
    assert (error.code, error.reason) == (code, reason)


def test_503_with_retry_after_is_throttled() -> None:
    error = from_status(status(503), code=503, side="home", what="", retry_after=2.0)
    assert type(error) is api_errors.Throttled
    assert error.retry_after == 2.0


def test_message_names_side_request_and_cause() -> None:
    error = from_status(
        status(404, "NotFound", 'pods "a" not found'), code=404, side="remote", what="GET /p"
    )
    assert str(error) == 'remote: GET /p: pods "a" not found'


def test_response_without_status_names_its_code() -> None:
    assert "502" in str(from_status(None, code=502, side="home", what="GET /p"))
    assert "502" in str(from_status(["x"], code=502, side="home", what="GET /p"))


def test_long_messages_are_cut() -> None:
    error = from_status(status(422, "Invalid", "x" * 5000), code=422, side="home", what="")
    assert len(error.message) == api_errors.MESSAGE_LIMIT


def test_422_for_another_uid_is_a_conflict() -> None:
    causes = [{"field": "metadata.uid", "message": "field is immutable"}]
    reported = status(422, "Invalid", "metadata.uid: Invalid value", details={"causes": causes})
    error = from_status(reported, code=422, side="remote", what="PATCH /p")
    assert type(error) is api_errors.UidMismatch
    assert error.code == 422


@pytest.mark.parametrize(
    "message",
    [
        'admission webhook "guard.test" denied the request: no',
        "pods is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
    ],
)
@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (401, "Unauthorized", api_errors.Forbidden),
        (404, "NotFound", api_errors.Forbidden),
        (409, "AlreadyExists", api_errors.Forbidden),
        (409, "Conflict", api_errors.Conflict),
        (410, "Gone", api_errors.Forbidden),
        (422, "Invalid", api_errors.Invalid),
    ],
)
def test_code_that_admission_chose_proves_nothing_about_the_object(
    message: str, code: int, reason: str, expected: type[ApiError]
) -> None:
    error = from_status(status(code, reason, message), code=code, side="remote", what="")
    assert type(error) is expected
    assert error.code == code


def test_which_errors_are_not_retryable() -> None:
    hopeless = {api_errors.BadRequest, api_errors.Invalid, api_errors.ClientConfigError}
    found = [KubeError]
    for cls in found:
        found += cls.__subclasses__()
    assert {cls for cls in found if not cls.retryable} == hopeless


@given(
    reported=st.fixed_dictionaries(
        {"kind": st.just("Status")},
        optional={"code": JSON, "reason": JSON, "message": JSON, "details": JSON},
    )
    | JSON,
    code=st.integers(400, 599),
)
def test_any_response_maps_to_an_error(reported: Any, code: int) -> None:
    assert isinstance(from_status(reported, code=code, side="home", what="GET /x"), ApiError)
