"""Explains the translation and the scheduling of a pod (`bridge explain`)."""
