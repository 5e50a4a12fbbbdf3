"""Sessions and their rounds: what is known of each, how it moves between workers, when its KV is released."""
