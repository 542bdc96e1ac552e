"""Tests of `bridge.sharding`."""
