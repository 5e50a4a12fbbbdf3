"""Compare what the simulator predicts with what the live stack does on mock engines of the same cost profile."""
