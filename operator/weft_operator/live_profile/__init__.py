"""Cost profiles that the operator measures itself: by Jobs with engines of their own, never on workers that serve."""
