"""Lay results out as text for people: one function for each kind of result."""

from weft_planner.tables.plan import plan_parts, refusal_parts
from weft_planner.tables.writing import text_of

__all__ = ["plan_parts", "refusal_parts", "text_of"]
