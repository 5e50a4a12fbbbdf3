"""Make the plan, and say why."""
