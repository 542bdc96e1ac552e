"""DNS names of home's Services in pods of the remote."""
