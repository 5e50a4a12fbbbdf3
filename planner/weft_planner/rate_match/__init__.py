"""Match the rates of context and generation servers, as TensorRT-LLM's users size disaggregated serving.

Each side alone gives a curve of throughput against latency, drawn from the cost profile; the ratio of their request
rates is the ratio of their workers. Perfect overlap and fractional workers are assumed: this is the ceiling that a plan
can come near, not a prediction (TensorRT-LLM's own comparison finds measured systems 0 to 25 % below).
"""

from weft_planner.rate_match.curves import (
    ContextPoint,
    GenerationPoint,
    RoundShape,
    aggregated_curve,
    context_curve,
    generation_curve,
    rounds_of,
)
from weft_planner.rate_match.matching import NoMatch, RateMatch, RateMatching, match_rates

__all__ = [
    "ContextPoint",
    "GenerationPoint",
    "NoMatch",
    "RateMatch",
    "RateMatching",
    "RoundShape",
    "aggregated_curve",
    "context_curve",
    "generation_curve",
    "match_rates",
    "rounds_of",
]
