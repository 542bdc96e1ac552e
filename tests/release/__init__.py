"""The release: every generator by itself. `e2e/test_release.py` builds a whole one."""
