"""The gate: the test run that decides whether a change is merged (`python -m e2e.gate --help`)."""
