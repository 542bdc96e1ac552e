"""The certificates of the kubelet tests."""

from tests.bridge.kubelet.conftest import pki

__all__ = ["pki"]
