"""The reasons of all conditions with their remedies, one module per group of conditions.

``weft_operator.status.conditions`` sets them, and ``weft_operator.controllers`` those of Planned.
"""
