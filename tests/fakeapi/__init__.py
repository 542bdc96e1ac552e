"""A fake Kubernetes API server on a real socket, for the tests of everything that talks to one.

It behaves as kube-apiserver does towards clients: metadata, resource versions, conflicts, paged
lists, watches, patches, graceful deletion, defaults and the common validation errors. It has no
controllers except the one that empties deleted namespaces. Tests use `FakeApi`; `Authority` issues
its certificate.
"""

from tests.fakeapi.api_errors import ApiErrorResponse
from tests.fakeapi.credentials import credentials_for
from tests.fakeapi.faults import Fault
from tests.fakeapi.request_log import LoggedRequest
from tests.fakeapi.server import CLOSED_PORT, FakeApi
from tests.fakeapi.tls import Authority

__all__ = [
    "CLOSED_PORT",
    "ApiErrorResponse",
    "Authority",
    "FakeApi",
    "Fault",
    "LoggedRequest",
    "credentials_for",
]
