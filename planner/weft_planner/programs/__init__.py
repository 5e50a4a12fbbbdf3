"""Prune: integer programs over both phases, the limits they keep, and what stands in for them."""
