"""The assembly of informers and controllers for one virtual node."""
