"""What `bridge explain` derives from objects alone: differences and dependencies."""
