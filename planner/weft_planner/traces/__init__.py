"""Recorded traffic: what its files hold, how they are read and checked, and what may be filled in or inferred."""
