"""Routing: which decode worker a session is bound to, and where each prefill runs."""
