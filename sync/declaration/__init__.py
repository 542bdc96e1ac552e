"""The interface between the engine and controllers: a controller is built from a
`controller_context`, and returns a `controller_declaration`.

Controllers import this package; the package imports no controller.
"""
