"""One adapter per engine: the flags, variables, ports and files of a worker's engine container.

What an engine cannot do at all is in ``weft_operator.api.engine_rules``, where the API server refuses it.
"""
