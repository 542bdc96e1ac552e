"""What a controller is built from (`context`) and what it declares to the engine (`declaration`).

Controllers import this package; the package imports no controller. `sync.engine` reads the
declarations and runs them.
"""
