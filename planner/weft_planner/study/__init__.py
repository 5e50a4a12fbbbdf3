"""Simulate layouts and policies of a service around its plan: at other rates, with other rules, on slower GPUs."""
