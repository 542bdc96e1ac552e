"""Serving certificates: issued, requested from home, stored, renewed; and home's client CA."""
