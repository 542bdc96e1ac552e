"""EndpointSlices and the agent pod of the relay, kept as Services need them."""
