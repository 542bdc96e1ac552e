"""A fake Kubernetes API server on a real socket, for the tests of everything that talks to one.

It behaves as kube-apiserver where a client can tell: metadata, resource versions, conflicts,
lists in pages, watches, patches, graceful deletion, defaults and the more common refusals. It has
no controllers, but for what removes the contents of a deleted namespace. `FakeApi` is what tests
use; `Authority` gives it a certificate.
"""

from tests.fakeapi.api_errors import ApiErrorResponse
from tests.fakeapi.client_config import client_config_for
from tests.fakeapi.faults import Fault
from tests.fakeapi.request_log import LoggedRequest
from tests.fakeapi.server import FakeApi
from tests.fakeapi.tls import Authority

__all__ = [
    "ApiErrorResponse",
    "Authority",
    "FakeApi",
    "Fault",
    "LoggedRequest",
    "client_config_for",
]
