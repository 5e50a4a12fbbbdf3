"""Tests of weft_planner."""
