"""Draw matched rates: both sides' curves, and end to end the fronts of disaggregated and aggregated serving.

The pictures are those of TensorRT-LLM's articles on disaggregated serving: tokens per second and GPU against tokens per
second and user.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import TypeVar

from weft_core.durations import format_seconds
from weft_core.parallelism import Degree
from weft_planner.rate_match import ContextPoint, CurveSource, GenerationPoint, RateMatching, WholeWorkers
from weft_planner.report import chart, html
from weft_planner.report.page import whole_page
from weft_planner.request.reading import Request

COLOURS = 4
"""Lines beyond so many have dashes and the same colours again."""
CONTEXT, GENERATION = 1, 2
LATE = 4.0
"""TTFT beyond this many times its SLO is drawn at the edge."""
USER = "tokens per second and user"
GPU = "tokens per second and GPU"

Point = TypeVar("Point", ContextPoint, GenerationPoint)


def rate_match_page(
    found: RateMatching,
    best: WholeWorkers | None,
    *,
    source: CurveSource,
    request: Request,
    name: str,
    version: str,
) -> str:
    """Return the page as HTML."""
    return whole_page(f"Rate matching for {name}", _sections(found, best, source, request, name, version))


def _sections(
    found: RateMatching, whole: WholeWorkers | None, source: CurveSource, request: Request, name: str, version: str
) -> Iterator[str]:
    slo, best = request.slo, found.best
    gpus = ", ".join(sorted({pool.gpu_type for pool in request.capacity.pools}))
    asked = (
        f"{request.model.name} on {gpus}: TTFT P{slo.percentile:g} within {format_seconds(slo.ttft)}, ITL within "
        f"{format_seconds(slo.itl)}."
    )
    yield (
        f'<header><p class="mark">Weft rate matching</p><h1>{escape(name)}</h1>'
        f"{html.paragraph(asked, 'quiet')}</header>"
    )
    context, generation = best.whole_ratio
    same = found.aggregated_for(1 / slo.itl)
    cards = [
        html.card("context : generation", f"{context} : {generation}", f"{best.ratio:.2f} workers for each one"),
        html.card("context degree", str(best.context.degree), f"{best.context.rounds_per_s:.3g} rounds a second"),
        html.card("generation degree", str(best.generation.degree), f"{best.generation.concurrency} sequences"),
        html.card(GPU, f"{best.tokens_per_s_gpu:.3g}", "disaggregated, within the SLO"),
        html.card(
            GPU,
            "-" if same is None else f"{same.tokens_per_s_gpu:.3g}",
            "aggregated: none is as fast" if same is None else f"aggregated, degree {same.degree}; TTFT not limited",
        ),
        html.card(
            f"{request.capacity.gpus} GPUs in whole workers",
            "-" if whole is None else str(whole),
            "none hold the SLO" if whole is None else f"{whole.tokens_per_s_gpu:.3g} {GPU}, within the SLO",
        ),
    ]
    yield f'<dl class="cards">{"".join(cards)}</dl>'
    yield "<h2>End to end</h2>" + html.figure(
        fronts(found, request),
        title="Disaggregated and aggregated serving",
        caption="Up and to the right is better. Disaggregated: generation servers with as many context servers as they "
        "need; aggregated: servers that prefill beside their batch. A ceiling: workers are fractional and overlap is "
        "perfect. The large dot has most tokens per GPU within the SLO, beside it context : generation workers.",
    )
    yield (
        "<h2>Each side alone</h2>"
        '<div class="two">'
        + html.figure(
            context_curves(found, request),
            title="Context servers",
            caption="Poisson arrivals, one prompt at a time, transfers included. Beyond the SLO a server is full.",
        )
        + html.figure(
            generation_curves(found, request, dots=source.measured),
            title="Generation servers",
            caption="Full batches of mean context, as far as the KV cache goes, idle sessions included.",
        )
        + "</div>"
    )
    said = [f"The curves are drawn from {source.words}", *(f"{one[0].upper()}{one[1:]}" for one in source.remarks)]
    yield f'<h2>What this rests on</h2><div class="panel">{html.listed(f"{one}." for one in said)}</div>'
    yield f"<footer>Weft {escape(version)} · seed {request.seed}</footer>"


def fronts(found: RateMatching, request: Request) -> str:
    """Draw both fronts."""
    matched = [(match.generation.tokens_per_s_user, match.tokens_per_s_gpu) for match in found.front]
    alone = [(point.tokens_per_s_user, point.tokens_per_s_gpu) for point in found.aggregated]
    best = found.best
    return chart.draw(
        chart.Chart(
            name="fronts",
            title="Tokens per GPU against tokens per user",
            description=f"Within the SLO disaggregated serving gives up to {best.tokens_per_s_gpu:.3g} tokens a second "
            f"and GPU at {best.generation.tokens_per_s_user:.3g} for each user.",
            x_label=USER,
            y_label=GPU,
            lines=[
                chart.Line("disaggregated", sorted(matched), CONTEXT),
                chart.Line("aggregated", sorted(alone), GENERATION),
            ],
            spots=[
                chart.Marker(
                    best.generation.tokens_per_s_user,
                    best.tokens_per_s_gpu,
                    f"{best.whole_ratio[0]} : {best.whole_ratio[1]}",
                    CONTEXT,
                )
            ],
            thresholds=[_itl(request)],
            x_zero=True,
        )
    )


def context_curves(found: RateMatching, request: Request) -> str:
    """Draw TTFT against the request rate per GPU, for each degree."""
    slo = request.slo
    return chart.draw(
        chart.Chart(
            name="context",
            title="TTFT of context servers against their load",
            description="; ".join(
                f"degree {point.degree} takes {point.rounds_per_s_gpu:.3g} rounds a second and GPU within the SLO"
                for point in found.context_best
            ),
            x_label="rounds per second and GPU",
            y_label=f"TTFT P{slo.percentile:g}, s (log scale)",
            lines=_lines(found.context_curves, lambda p: (p.rounds_per_s_gpu, p.ttft_s)),
            thresholds=[chart.Threshold("y", slo.ttft, f"SLO {format_seconds(slo.ttft)}")],
            log_y=True,
            y_most=LATE * slo.ttft,
            x_zero=True,
        )
    )


def generation_curves(found: RateMatching, request: Request, *, dots: bool) -> str:
    """Draw tokens per GPU against tokens per user, for each degree; measured points have dots."""
    curves = {degree: curve for degree, curve in found.generation_curves.items() if curve}
    return chart.draw(
        chart.Chart(
            name="generation",
            title="Tokens per GPU of generation servers against tokens per user",
            description="; ".join(
                f"degree {degree} decodes up to {curve[-1].concurrency} sequences" for degree, curve in curves.items()
            ),
            x_label=USER,
            y_label=GPU,
            lines=_lines(curves, lambda p: (p.tokens_per_s_user, p.tokens_per_s_gpu), dots=dots),
            thresholds=[_itl(request)],
            x_zero=True,
        )
    )


def _itl(request: Request) -> chart.Threshold:
    return chart.Threshold("x", 1 / request.slo.itl, f"SLO {format_seconds(request.slo.itl)}")


def _lines(
    curves: Mapping[Degree, Sequence[Point]], at: Callable[[Point], tuple[float, float]], *, dots: bool = False
) -> list[chart.Line]:
    return [
        chart.Line(
            f"degree {degree}", [at(point) for point in curve], 1 + place % COLOURS, dashed=place >= COLOURS, dots=dots
        )
        for place, (degree, curve) in enumerate(curves.items())
    ]
