"""Compare ways to follow traffic whose prompts and answers take turns, on the same full nodes."""
