"""The planner's verbs of the ``weft`` command."""
