"""`bridge cordon`, `bridge uncordon` and `bridge drain`."""
