"""Lay out a planner's answer as text for people."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import cast

from weft_core.durations import format_seconds
from weft_core.plan import Plan, PlannedGroup, Prediction, plan_from_json
from weft_planner.workload import Request

WIDTH = 100


def render(result: Mapping[str, object], *, request: Request, name: str) -> str:
    """Return the text of an answer: layout, predictions beside the SLO, alternatives, reasons."""
    if result["status"] != "ok":
        return f"No plan for {name or request.model.name}: {result['reason']}\n\n{_wrapped(str(result['message']))}"
    plan = plan_from_json(cast(Mapping[str, object], result["plan"]))
    gpu = request.capacity.pools[0].gpu_type
    title = (
        f"Plan {plan.revision} for {name or request.model.name}: {request.model.name} on {gpu}, "
        f"{plan.gpus} of {request.capacity.gpus} GPUs, objective {plan.objective}"
    )
    parts = [title, _groups(plan), _predictions(plan.predicted, request)]
    if plan.alternatives:
        parts.append(_alternatives(plan, request))
    parts += [_wrapped(f"Why: {plan.reason}"), _wrapped(plan.slo_reading)]
    return "\n\n".join(parts)


def _groups(plan: Plan) -> str:
    rows = [[g.role, str(g.degree), str(g.replicas), str(g.gpus), g.pool] for g in plan.groups]
    return _table(["ROLE", "DEGREE", "WORKERS", "GPUS", "POOL"], rows)


def _predictions(predicted: Prediction, request: Request) -> str:
    percentile = f"P{request.slo.percentile:g}"
    rows = [
        _prediction_row("time to first token", predicted.ttft_p95_s, predicted.ttft_mean_s, request.slo.ttft),
        _prediction_row("inter-token latency", predicted.itl_p95_s, predicted.itl_mean_s, request.slo.itl),
    ]
    return _table(["PREDICTED", percentile, "MEAN", "SLO", "HELD"], rows)


def _prediction_row(what: str, quantile: float, mean: float, slo: float) -> list[str]:
    held = "yes" if quantile <= slo else "no"
    return [what, format_seconds(quantile), format_seconds(mean), format_seconds(slo), held]


def _alternatives(plan: Plan, request: Request) -> str:
    percentile = f"P{request.slo.percentile:g}"
    rows = []
    for alternative in plan.alternatives:
        predicted = alternative.predicted
        rows.append(
            [
                "  ".join(_short(group) for group in alternative.groups),
                str(predicted.gpus),
                format_seconds(predicted.ttft_p95_s),
                format_seconds(predicted.itl_p95_s),
                "yes" if predicted.slo_met else "no",
                f"{alternative.score:.0%}" if alternative.score < 10 else "-",
            ]
        )
    return _table(["ALTERNATIVE", "GPUS", f"TTFT {percentile}", f"ITL {percentile}", "HELD", "OF SLO"], rows)


def _short(group: PlannedGroup) -> str:
    return f"{group.role} {group.degree}x{group.replicas}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows))
    return "\n".join(line.rstrip() for line in lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
