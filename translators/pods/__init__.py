"""The translation of a pod: its spec, identity, references, status and updates, both ways."""
