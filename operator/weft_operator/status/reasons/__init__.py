"""The reasons of all conditions with their remedies, one module per group of conditions.

``weft_operator.status.conditions`` decides which of them holds, ``weft_operator.controllers`` those of Planned.
"""
