"""Measure the planner: simulator, plans, integer program, cold start and memory: ``python -m bench.planner``."""
