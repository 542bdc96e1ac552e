"""The CustomResourceDefinitions of the API group `cluster-bridge.io`."""
