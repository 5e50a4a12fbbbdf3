"""Lay out matched rates of context and generation servers."""

from collections.abc import Iterator

from weft_planner.rate_match import CurveSource, RateMatch, RateMatching, WholeWorkers
from weft_planner.request.reading import Request
from weft_planner.tables import figures
from weft_planner.tables.writing import QUIET, Paragraph, Part, TableCell, TextTable, held


def rate_match_parts(
    found: RateMatching,
    best: WholeWorkers | None,
    *,
    source: CurveSource,
    request: Request,
    name: str,
    rounds_per_s: float,
) -> list[Part]:
    """Return what to print of a rate matching."""
    return [*_parts(found, best, source, request=request, name=name, rounds_per_s=rounds_per_s)]


def _parts(
    found: RateMatching,
    best: WholeWorkers | None,
    source: CurveSource,
    *,
    request: Request,
    name: str,
    rounds_per_s: float,
) -> Iterator[Part]:
    slo = request.slo
    smallest = found.smallest(rounds_per_s)
    context, generation = smallest.workers_for(rounds_per_s)
    yield Paragraph(
        f"for {name or request.model.name}: TTFT P{slo.percentile:g} within {figures.latency(slo.ttft)}, "
        f"ITL within {figures.latency(slo.itl)}, {rounds_per_s:.3g} rounds a second",
        lead="Rate matching",
    )
    yield _contexts(found, slo.percentile)
    yield _front(found, rounds_per_s)
    yield Paragraph(
        f"{_ratio(found.best)} workers, context degree {found.best.context.degree} and generation degree "
        f"{found.best.generation.degree} at {found.best.generation.concurrency} sequences each, give "
        f"{found.best.tokens_per_s_gpu:.3g} output tokens a second and GPU within the SLO.",
        lead="Most per GPU:",
    )
    same = found.aggregated_for(found.best.generation.tokens_per_s_user)
    if same is not None and same.tokens_per_s_gpu > found.best.tokens_per_s_gpu:
        yield Paragraph(
            f"a server of degree {same.degree} that prefills beside its batch gives {same.tokens_per_s_gpu:.3g} and is "
            "as fast for each user, but its prompts may wait longer than the TTFT SLO. `weft plan` says which of the "
            "two holds the SLO.",
            lead="More without disaggregation:",
        )
    budget = request.capacity.gpus
    fits = "within" if smallest.gpus_for(rounds_per_s) <= budget else "which is more than"
    yield Paragraph(
        f"{_workers(context, 'context')} of degree {smallest.context.degree} and {_workers(generation, 'generation')} "
        f"of degree {smallest.generation.degree}: {smallest.gpus_for(rounds_per_s)} GPUs, {fits} the {budget} of "
        "spec.capacity.",
        lead="For this workload:",
    )
    yield Paragraph(for_capacity(best, budget, slo.percentile), lead=f"For {budget} GPUs:")
    yield Paragraph(
        f"The curves are drawn from {source.words}: a context server takes one prompt at a time from Poisson "
        "arrivals, a generation server decodes a full batch of mean context and keeps the KV of idle sessions. Rate "
        "matching is a ceiling: it assumes fractional workers and perfect overlap, and measured systems stay below "
        "it. AGGREGATED is the tokens per second and GPU of the best server that prefills beside its batch and is as "
        "fast for each user; its TTFT is not limited. The layout for all GPUs has whole workers: context workers share "
        "one queue and compute for 90% of the time at most, generation workers give 92% of their tokens, and "
        "aggregated ones hold the TTFT SLO, too. `weft plan` without --rate-match simulates whole workers, queues and "
        "transfers.",
        style=QUIET,
    )
    for remark in source.remarks:
        yield Paragraph(f"{remark[0].upper()}{remark[1:]}.", lead="Note:", style=QUIET)


def _contexts(found: RateMatching, percentile: float) -> Part:
    best = {point.degree: point for point in found.context_best}
    # Best per GPU first; those that hold the SLO at no load are last.
    degrees = sorted(found.context_curves, key=lambda d: -best[d].rounds_per_s_gpu if d in best else 0.0)
    rows: list[list[str | TableCell]] = []
    for degree in degrees:
        curve = found.context_curves[degree]
        point = best.get(degree)
        shown = point or curve[0]
        rows.append(
            [
                str(degree),
                figures.rate(shown.rounds_per_s) if point else "-",
                figures.rate(shown.rounds_per_s_gpu) if point else "-",
                figures.share(shown.utilisation),
                figures.latency(shown.ttft_s),
                held(point is not None),
            ]
        )
    header = ["DEGREE>", "ROUNDS/S>", "PER GPU>", "BUSY>", f"TTFT P{percentile:g}>", "HELD"]
    marked = [k for k, degree in enumerate(degrees) if degree == found.best.context.degree]
    return TextTable(header, rows, title="Context servers, at the most load that holds the TTFT SLO", marked=marked)


def _front(found: RateMatching, rounds_per_s: float) -> Part:
    header = [
        "TOKENS/S/USER>",
        "ITL>",
        "DEGREE>",
        "SEQUENCES>",
        "KV>",
        "CTX:GEN>",
        "RATIO>",
        "TOKENS/S/GPU>",
        "AGGREGATED>",
        "GPUS>",
        "HELD",
    ]
    rows = [_row(found, match, rounds_per_s) for match in found.front]
    marked = [k for k, match in enumerate(found.front) if match == found.best]
    title = "Generation servers with matched context servers (GPUS: for this workload)"
    return TextTable(header, rows, title=title, marked=marked)


def _row(found: RateMatching, match: RateMatch, rounds_per_s: float) -> list[str | TableCell]:
    point = match.generation
    aggregated = found.aggregated_for(point.tokens_per_s_user)
    return [
        f"{point.tokens_per_s_user:.3g}",
        figures.latency(point.itl_s),
        str(point.degree),
        str(point.concurrency),
        figures.share(point.kv_share) if point.kv_share > 0 else "-",
        _ratio(match),
        f"{match.ratio:.2f}",
        f"{match.tokens_per_s_gpu:.3g}",
        "-" if aggregated is None else f"{aggregated.tokens_per_s_gpu:.3g}",
        str(match.gpus_for(rounds_per_s)),
        held(match.holds),
    ]


def _ratio(match: RateMatch) -> str:
    context, generation = match.whole_ratio
    return f"{context}:{generation}"


def for_capacity(best: WholeWorkers | None, budget: int, percentile: float) -> str:
    """Say which whole workers of a number of GPUs carry most within the SLO."""
    if best is None:
        return "no whole workers within them hold the SLO."
    said = f"{best} carries {best.rounds_per_s:.3g} rounds a second within the SLO, {best.tokens_per_s_gpu:.3g} output "
    said += f"tokens a second and GPU, on {best.gpus} of {budget} GPUs: "
    generation, seconds = best.generation, figures.latency(best.ttft_s)
    sequences = f"{generation.concurrency} sequences each, {figures.latency(generation.itl_s)} between tokens"
    if best.context is None:
        return f"{said}workers that prefill beside {sequences}, TTFT P{percentile:g} {seconds}."
    context = f"context workers busy for {figures.share(best.context.utilisation)}, TTFT P{percentile:g} {seconds}"
    return f"{said}{context}; generation workers with up to {sequences}."


def _workers(count: int, kind: str) -> str:
    return f"{count} {kind} worker{'' if count == 1 else 's'}"
