"""Cost profiles that the operator measures with Jobs of their own, never on workers that serve."""
