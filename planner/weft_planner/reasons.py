"""Put a plan into words: why this layout, what limits it, what else would do, and how the SLO was read."""

from collections.abc import Sequence

from weft_core.durations import format_seconds
from weft_core.slo import PER_SESSION
from weft_planner.ilp import Candidate, Layout
from weft_planner.sessions import Sample
from weft_planner.tau import STEADY_LIMIT
from weft_planner.workload import Request

NOTABLE_DROP = 0.02
"""Share of rounds cut off by maxModelLen from which the plan says so."""


def layout_name(layout: Layout) -> str:
    """Return a short name such as P4x2 D8x1: role, degree x workers."""
    return f"P{layout.prefill.degree}x{layout.prefill.replicas} D{layout.decode.degree}x{layout.decode.replicas}"


def slo_reading(request: Request, *, rows: int) -> str:
    """Say what the predicted figures mean, and how attainment will be counted."""
    percentile = f"P{request.slo.percentile:g}"
    history = "reads its history" if request.engine.bidirectional else "recomputes its history"
    return (
        f"Predicted: {percentile} of every round's TTFT and {percentile} of the rounds' mean ITL, each phase simulated "
        f"alone over {rows} rounds in steady state with the other idealised, every prefill remote to the shortest "
        f"queue, and a later round {history}. Attainment (goal {request.slo.attainment:.0%}) is counted {PER_SESSION}."
    )


def reason_for(request: Request, ranked: Sequence[Layout], *, sample: Sample, notes: Sequence[str]) -> str:
    """Say why the first layout was chosen, in whole sentences."""
    best = ranked[0]
    sentences = [_verdict(request, best), _limit(best)]
    cheaper = [layout for layout in ranked[1:] if layout.holds and layout.gpus < best.gpus]
    if request.objective == "latency" and best.holds and cheaper:
        least = min(cheaper, key=lambda layout: layout.gpus)
        sentences.append(
            f"{layout_name(least)} on {least.gpus} GPUs would hold the SLO too (objective cost chooses it)."
        )
    if sample.dropped > NOTABLE_DROP:
        sentences.append(
            f"{sample.dropped:.0%} of the rounds would exceed maxModelLen {request.model.max_model_len} and were left "
            "out: their sessions end early."
        )
    if sample.short_past:
        sentences.append(
            f"More sessions are alive at once than are simulated: only those of the last {sample.past:.0f} s are, so "
            "KV memory may be scarcer than predicted."
        )
    sentences += [f"Note: {note}." for note in dict.fromkeys(notes)]
    return " ".join(sentences)


def _verdict(request: Request, best: Layout) -> str:
    gpus = f"{best.gpus} of {request.capacity.gpus} GPUs"
    if best.holds and request.objective == "cost":
        return f"{layout_name(best)} uses the fewest GPUs that hold the SLO: {gpus}."
    if best.holds:
        return f"{layout_name(best)} keeps the worse latency lowest, at {best.worst:.0%} of its SLO, on {gpus}."
    chosen = " (objective cost falls back to the best latency)" if request.objective == "cost" else ""
    return f"No layout of {request.capacity.gpus} GPUs holds the SLO; {layout_name(best)} comes closest{chosen}."


def _limit(best: Layout) -> str:
    busiest = max((best.prefill, best.decode), key=lambda c: c.tau.utilisation)
    if busiest.tau.utilisation >= STEADY_LIMIT:
        return _overload(busiest)
    prefill, decode = best.prefill, best.decode
    latencies = (
        f"TTFT takes {prefill.share:.0%} and ITL {decode.share:.0%} of its SLO; "
        f"prefill workers are {prefill.tau.utilisation:.0%} and decode workers {decode.tau.utilisation:.0%} used."
    )
    if best.holds:
        return latencies
    ttft, itl = format_seconds(prefill.tau.quantile_s), format_seconds(decode.tau.quantile_s)
    return f"{latencies} An SLO of TTFT {ttft} and ITL {itl} would hold."


def _overload(group: Candidate) -> str:
    used = group.tau.utilisation
    return (
        f"The {group.role} workers would be {used:.0%} used, so their queue grows without end: "
        f"these GPUs carry about {STEADY_LIMIT / used:.0%} of the arrival rate, or the role needs about "
        f"{used / STEADY_LIMIT:.1f} times its {group.gpus} GPUs."
    )
