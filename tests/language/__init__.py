"""The lint rule for language: which words code, messages and documents do not use, and why."""
