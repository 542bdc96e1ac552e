"""`bridge leave`: what belongs to a virtual node on both sides, and its removal."""
