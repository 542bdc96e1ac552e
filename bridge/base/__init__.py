"""Settings, errors, output, version, memory and event loop, for use by every other package.

Nothing here knows a feature of the bridge.
"""
