"""Tests of `bridge.crds`."""
