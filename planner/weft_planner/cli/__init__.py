"""The planner's commands below ``weft``."""
