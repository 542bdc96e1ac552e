"""Copies of ConfigMaps, Secrets, Services and EndpointSlices, and of Events."""
