"""``make bench-kv``: what memory below the GPUs brings to sessions that pause."""
