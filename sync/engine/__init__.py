"""Assembles the informers and controllers of one virtual node, and runs them."""
