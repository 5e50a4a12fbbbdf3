"""Pure domain of Weft: cost models, plans and scheduling policies; no I/O, clock or randomness of its own."""
