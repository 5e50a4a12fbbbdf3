"""Write matched rates as JSON-ready data; times in seconds."""

from weft_core.parallelism import degree_to_json
from weft_planner.rate_match.curves import ContextPoint, GenerationPoint
from weft_planner.rate_match.matching import CurveSource, RateMatch, RateMatching
from weft_planner.rate_match.whole_workers import WholeWorkers

Json = dict[str, object]


def body_of(found: RateMatching, best: WholeWorkers | None, *, source: CurveSource, rounds_per_s: float) -> Json:
    """Return everything: both curves, the front, the best ratio, the workers for a request rate and for the GPUs."""
    return {
        "curves": {"source": source.words, "measured": source.measured, "remarks": [*source.remarks]},
        "roundsPerSecond": rounds_per_s,
        "best": _match(found.best),
        "forWorkload": {**_match(found.smallest(rounds_per_s)), **_workers(found.smallest(rounds_per_s), rounds_per_s)},
        "forCapacity": None if best is None else _layout(best),
        "front": [_match(match) for match in found.front],
        "aggregatedFront": [_generation(point) for point in found.aggregated],
        "contextCurves": {str(n): [_context(p) for p in curve] for n, curve in found.context_curves.items()},
        "generationCurves": {str(n): [_generation(p) for p in curve] for n, curve in found.generation_curves.items()},
    }


def _match(match: RateMatch) -> Json:
    context, generation = match.whole_ratio
    return {
        "context": _context(match.context),
        "generation": _generation(match.generation),
        "contextPerGeneration": match.ratio,
        "wholeRatio": {"context": context, "generation": generation},
        "outputTokensPerSecondPerGpu": match.tokens_per_s_gpu,
        "sloHeld": match.holds,
    }


def _layout(best: WholeWorkers) -> Json:
    return {
        "layout": best.kind,
        "groups": [
            {"role": g.role, "degree": degree_to_json(g.degree), "replicas": g.replicas, "pool": g.pool}
            for g in best.groups
        ],
        "gpus": best.gpus,
        "context": None if best.context is None else _context(best.context),
        "generation": _generation(best.generation),
        "ttft": best.ttft_s,
        "roundsPerSecond": best.rounds_per_s,
        "outputTokensPerSecondPerGpu": best.tokens_per_s_gpu,
    }


def _workers(match: RateMatch, rounds_per_s: float) -> Json:
    context, generation = match.workers_for(rounds_per_s)
    return {"workers": {"context": context, "generation": generation}, "gpus": match.gpus_for(rounds_per_s)}


def _context(point: ContextPoint) -> Json:
    return {
        "degree": degree_to_json(point.degree),
        "utilisation": point.utilisation,
        "roundsPerSecond": point.rounds_per_s,
        "roundsPerSecondPerGpu": point.rounds_per_s_gpu,
        "ttft": point.ttft_s,
    }


def _generation(point: GenerationPoint) -> Json:
    return {
        "degree": degree_to_json(point.degree),
        "concurrency": point.concurrency,
        "itl": point.itl_s,
        "tokensPerSecondPerUser": point.tokens_per_s_user,
        "tokensPerSecond": point.tokens_per_s,
        "tokensPerSecondPerGpu": point.tokens_per_s_gpu,
        "roundsPerSecond": point.rounds_per_s,
        "kvShare": point.kv_share or None,
    }
