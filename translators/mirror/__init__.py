"""The translation of the objects that pods refer to, and of Events."""
