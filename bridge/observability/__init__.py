"""What the bridge says of itself: log lines for people."""
