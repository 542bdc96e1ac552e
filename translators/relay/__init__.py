"""The objects of the relay, in both directions: EndpointSlices, addresses, and the relay agent's
Pod."""
