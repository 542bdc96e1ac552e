"""What every package of the bridge may use: settings, errors, output, version, memory, event loop.

Nothing here knows a feature of the bridge.
"""
