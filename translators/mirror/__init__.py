"""Translates ConfigMaps, Secrets, Services, EndpointSlices and Events."""
