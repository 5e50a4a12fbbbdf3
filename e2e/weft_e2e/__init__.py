"""Local cluster, demo, reusable checks and end-to-end scenarios."""
