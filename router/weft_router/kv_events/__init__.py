"""What an engine's own events say of its KV cache: decoded, put in order, and indexed."""
