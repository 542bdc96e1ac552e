"""Settings, errors, output, version, garbage collection and event loop, for all packages.

Nothing here knows a feature of the bridge.
"""
