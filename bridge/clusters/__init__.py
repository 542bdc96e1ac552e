"""Connects to the two clusters and reads facts about them: addresses, networks, metrics sources.

Nothing here writes to a cluster. A fact that cannot be established raises `PreflightError`.
"""
