"""Readings of a running service: metrics from Prometheus, heartbeats and demand from Redis."""
