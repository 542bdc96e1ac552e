"""End-to-end tests on real Kubernetes clusters, and the programs that they share.

Test files and their helpers are here; `clusters` starts clusters, `audit` compares the state of two
clusters, `faults` injects faults, `bench` measures, `conformance` runs Kubernetes' own tests, and
`docs` generates pages. There are no mocks.
"""
