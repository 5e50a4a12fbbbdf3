"""Match the rates of context and generation servers, as TensorRT-LLM's users size disaggregated serving.

Each side alone gives a curve of throughput against latency, drawn from the cost profile or measured on live engines
(``weft profile sweep``); the ratio of their request
rates is the ratio of their workers. Perfect overlap and fractional workers are assumed: this is the ceiling that a plan
can come near, not a prediction (TensorRT-LLM's own comparison finds measured systems 0 to 25 % below).
"""

from weft_planner.rate_match.curves import (
    ContextPoint,
    GenerationPoint,
    aggregated_curve,
    context_curve,
    generation_curve,
)
from weft_planner.rate_match.matching import CurveSource, NoMatch, RateMatch, RateMatching, Servers, match_rates
from weft_planner.rate_match.measured import MeasuredServer
from weft_planner.rate_match.request import allowed_degrees, drawn_rounds, profiled_servers
from weft_planner.rate_match.rounds import RoundShape, rounds_of
from weft_planner.rate_match.servers import ProfiledServer, Server
from weft_planner.rate_match.whole_workers import WholeWorkers, best_whole_workers

__all__ = [
    "ContextPoint",
    "CurveSource",
    "GenerationPoint",
    "MeasuredServer",
    "NoMatch",
    "ProfiledServer",
    "RateMatch",
    "RateMatching",
    "RoundShape",
    "Server",
    "Servers",
    "WholeWorkers",
    "aggregated_curve",
    "allowed_degrees",
    "best_whole_workers",
    "context_curve",
    "drawn_rounds",
    "generation_curve",
    "match_rates",
    "profiled_servers",
    "rounds_of",
]
