"""Who may ask: keys, tokens, the proofs of router processes, certificates."""
