"""End-to-end: real clusters, and what is tried on them. No mocks live here."""
