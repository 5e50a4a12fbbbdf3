"""Planning: analytic profiles, per-phase simulation and the integer program, behind the ``weft plan`` verb."""
