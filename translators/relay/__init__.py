"""The objects of the relay: EndpointSlices, addresses and the agent pod, both directions."""
