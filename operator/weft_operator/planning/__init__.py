"""Asking the planner: what it is asked, the child process that answers, and when to ask again."""
