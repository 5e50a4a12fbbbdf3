"""A service's own changes to its pods: how they are merged, and what they may not touch."""
