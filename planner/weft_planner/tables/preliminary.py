"""Lay out what the integer program ranks by both phases alone: all there is before whole layouts are simulated."""

from collections.abc import Sequence

from weft_core.json_fields import finite_or_none
from weft_core.layouts import layout_name
from weft_core.parallelism import degree_to_json
from weft_planner.programs.group_options import LayoutPair
from weft_planner.request.reading import Request
from weft_planner.tables import figures
from weft_planner.tables.writing import Paragraph, Part, TableCell, TextTable, held

Json = dict[str, object]


def preliminary_parts(layouts: Sequence[LayoutPair], *, request: Request, name: str) -> list[Part]:
    """Return what to print."""
    percentile = f"P{request.slo.percentile:g}"
    header = ["#>", "LAYOUT", "GPUS>", f"TTFT {percentile}>", f"ITL {percentile}>", "HELD"]
    rows: list[list[str | TableCell]] = [
        [
            str(place),
            layout_name(layout.groups, "disaggregated", named=len(request.capacity.pools) > 1),
            str(layout.gpus),
            figures.latency(layout.prefill.tau.quantile_s),
            figures.latency(layout.decode.tau.quantile_s),
            held(layout.holds),
        ]
        for place, layout in enumerate(layouts, 1)
    ]
    said = (
        f"for {name or request.model.name}: prefill and decode each by itself, as if neither disturbed the other. "
        "The plan simulates both together under the service's policy, and may choose another layout."
    )
    return [Paragraph(said, lead="Preliminary ranking"), TextTable(header, rows)]


def preliminary_body(layouts: Sequence[LayoutPair]) -> list[Json]:
    """Return the same as JSON-ready data; latencies in seconds, null where the load is too much."""
    return [
        {
            "groups": [
                {"role": g.role, "degree": degree_to_json(g.degree), "replicas": g.replicas, "pool": g.pool}
                for g in layout.groups
            ],
            "gpus": layout.gpus,
            "ttftP95": finite_or_none(layout.prefill.tau.quantile_s),
            "itlP95": finite_or_none(layout.decode.tau.quantile_s),
            "sloMet": layout.holds,
        }
        for layout in layouts
    ]
