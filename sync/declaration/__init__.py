"""The interface between the engine and controllers: what a controller is built from (`context`),
and what it declares (`declaration`).

Controllers import this package; the package imports no controller.
"""
