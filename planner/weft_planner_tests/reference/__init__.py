"""Simulate sessions the slow and obvious way: objects, lists and sums, every token on its own, no compiled code.

It follows the same words as the compiled simulator (docstrings of ``weft_planner.simulation``) and asks the same
policies; whatever the compiled one keeps as a running total is added up from scratch here.
"""

from weft_planner_tests.reference.simulation import Reference

__all__ = ["Reference"]
