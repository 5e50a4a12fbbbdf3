"""Scheduling rules of the router, one file each: pure functions from a snapshot to a decision with its reasons."""
