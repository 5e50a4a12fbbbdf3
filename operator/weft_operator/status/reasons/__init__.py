"""The catalogue of condition reasons: meaning, cause and remedy, one module per group of conditions.

Reasons are decided in ``weft_operator.replanning.decide`` (those of Planned) and ``weft_operator.status`` (all others).
"""
