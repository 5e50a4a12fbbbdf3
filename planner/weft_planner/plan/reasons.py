"""Put a plan into words: why this layout, what limits it, what else would do, and how the SLO was read."""

import math
from collections.abc import Sequence

from weft_core.durations import format_seconds
from weft_core.layouts import named_workers
from weft_core.prediction import Limit, Prediction
from weft_planner.evaluation.goodput_search import STEP, TOP_RUNG
from weft_planner.evaluation.ranking import Evaluation
from weft_planner.evaluation.samples import ROUNDS
from weft_planner.evaluation.trials import SEEDS, reading_of
from weft_planner.request.reading import Request
from weft_planner.workload.sessions import Sample

_RESOURCES = {"compute": "the {}", "kv": "the KV cache of the {}", "link": "the links"}
NOTABLE_DROP = 0.02
"""Share of rounds cut off by maxModelLen from which the plan says so."""


def slo_reading(request: Request) -> str:
    """Say what the predicted figures mean, and how attainment is counted."""
    slo = request.slo
    percentile = f"P{slo.percentile:g}"
    history = "reads its history" if request.engine.bidirectional else "recomputes its history"
    reading = reading_of(request)
    return (
        f"Predicted: {percentile} of every round's TTFT and {percentile} of the rounds' mean ITL, simulated with the "
        f"policy over {SEEDS} seeds of at least {ROUNDS} rounds in steady state; a remote round {history}. "
        f"Attainment (goal {slo.attainment:.0%}) is counted {reading}; goodput is the highest rate that keeps it at "
        "the goal. Intervals are 95 % over the seeds."
    )


def reason_for(request: Request, ranked: Sequence[Evaluation], *, sample: Sample, notes: Sequence[str]) -> str:
    """Say why the first layout was chosen, in whole sentences."""
    best = ranked[0]
    sentences = [_verdict(request, best), _load(request, best.predicted), _limit(best.predicted)]
    cheaper = [one for one in ranked[1:] if one.holds and one.candidate.runnable and one.money < best.money]
    if request.objective == "latency" and best.holds and cheaper:
        least = min(cheaper, key=lambda one: one.money)
        sentences.append(
            f"{least.candidate} on {least.candidate.gpus} GPUs would hold the SLO too (objective cost chooses it)."
        )
    better = [one for one in ranked[1:] if not one.candidate.runnable and one.goodput > 1.05 * best.goodput]
    if better:
        most = max(better, key=lambda one: one.goodput)
        sentences.append(
            f"{most.candidate} with policy {_policy(most)} would carry {most.goodput:.3g} sessions/s; "
            f"{most.candidate.note}."
        )
    if sample.dropped > NOTABLE_DROP:
        sentences.append(
            f"{sample.dropped:.0%} of the rounds would exceed maxModelLen {request.model.max_model_len} and were left "
            "out: their sessions end early."
        )
    sentences += [f"Note: {note}." for note in dict.fromkeys(notes)]
    return " ".join(sentences)


def _verdict(request: Request, best: Evaluation) -> str:
    gpus = f"{best.candidate.gpus} of {request.capacity.gpus} GPUs"
    name = f"{best.candidate} with policy {_policy(best)}"
    if best.holds and request.objective == "cost":
        what = "is the cheapest" if best.predicted.cost_per_hour is not None else "uses the fewest GPUs"
        return f"{name} {what} that holds the SLO at {1 + request.headroom:.0%} of the load: {gpus}."
    if best.holds:
        return f"{name} holds the SLO at the highest load, on {gpus}."
    chosen = " (objective cost falls back to the highest goodput)" if request.objective == "cost" else ""
    return f"No layout of {request.capacity.gpus} GPUs holds the SLO; {name} comes closest{chosen}."


def _load(request: Request, predicted: Prediction) -> str:
    attained, goodput = predicted.attainment, predicted.goodput
    if attained is None or goodput is None:
        return ""
    rate = request.workload.arrival_rate
    met = f"{attained.value:.1%} of {request.slo.unit}s meet it at {rate:g} sessions/s"
    if goodput.low >= rate * STEP**TOP_RUNG:
        return f"{met}; it carries {goodput.value:.3g} and more at {request.slo.attainment:.0%}."
    return (
        f"{met}; it carries up to {goodput.value:.3g} ({goodput.low:.3g} to {goodput.high:.3g}) at "
        f"{request.slo.attainment:.0%}."
    )


def _limit(predicted: Prediction) -> str:
    latencies = [limit for limit in predicted.limits if limit.kind in ("ttft", "itl")]
    resources = [limit for limit in predicted.limits if limit.kind not in ("ttft", "itl")]
    parts = [f"{limit.kind.upper()} takes {_percent(limit)} of its SLO" for limit in latencies]
    parts += [f"{_percent(limit)} of {_resource(limit)} is used" for limit in resources[:1]]
    return "; ".join(parts) + "."


def _resource(limit: Limit) -> str:
    return _RESOURCES[limit.kind].format("workers" if limit.role is None else named_workers(limit.role))


def _percent(limit: Limit) -> str:
    return f"{limit.share:.0%}" if limit.share < 10 else "more than 10 times"


def _policy(one: Evaluation) -> str:
    policy = one.candidate.policy
    return f"{policy.route} ({policy.mode})" if policy.route == "weft" else policy.route


def thresholds(ttft_s: float, itl_s: float) -> str:
    """Return an SLO in words."""
    return f"TTFT {format_seconds(ttft_s) if math.isfinite(ttft_s) else 'unbounded'} and ITL {format_seconds(itl_s)}"
