"""Services without workers: when all of them leave, and when they come back."""
