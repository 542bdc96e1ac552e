"""Tests of the comparison of nodes by the upstream tests (`e2e/conformance`), without clusters."""
