"""Schedules of a service, and its scale to zero while it is idle."""
