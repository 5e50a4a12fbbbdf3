"""Planning: cost profiles, per-phase simulation and the integer program, behind ``weft plan``."""
