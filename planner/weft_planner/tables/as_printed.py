"""Lay out AMPD's Eq. (5) as printed: the latencies that it knows, its optimum, and the layouts that are as good."""

from weft_core.layouts import ROLES, layout_name
from weft_core.parallelism import degree_to_json, in_layout
from weft_planner.programs.as_printed import PrintedOptimum
from weft_planner.request.reading import Request
from weft_planner.tables import figures
from weft_planner.tables.writing import Paragraph, Part, TextTable

Json = dict[str, object]


def as_printed_parts(found: PrintedOptimum, *, request: Request, name: str) -> list[Part]:
    """Return what to print."""
    percentile = f"P{request.slo.percentile:g}"
    pools = len(request.capacity.pools) > 1
    header = [*(["POOL"] if pools else []), "ROLE", "DEGREE>", f"{percentile} OF ONE WORKER>", "AT THE OPTIMUM"]
    rows = [
        [
            *([kind.pool] if pools else []),
            kind.role,
            in_layout(kind.degree),
            f"{'TTFT' if kind.role == 'prefill' else 'ITL'} {figures.latency(kind.seconds)}",
            "any number" if kind in found.allowed else "none",
        ]
        for kind in found.kinds
    ]
    lead = f"AMPD's Eq. (5) as printed, for {name or request.model.name}:"
    said = f"the smallest {percentile} in seconds of the worst worker, on {found.budget} GPUs."
    layout = layout_name(found.groups, "disaggregated", named=pools)
    gpus = sum(group.gpus for group in found.groups)
    many = (
        f"{found.layouts:,} layouts of {found.least} to {found.budget} GPUs have this Z, because the latency of one "
        "worker does not depend on how many there are: which of them a solver returns is arbitrary."
        if found.layouts > 1
        else "No other layout has this Z."
    )
    binds = (
        "ITL is the larger latency, so TTFT counts for nothing."
        if found.itl_binds
        else "TTFT is the larger latency, so ITL counts for nothing: (C2) is never the one that holds Z up."
    )
    return [
        Paragraph(said, lead=lead),
        TextTable(header, rows),
        Paragraph(f"{figures.latency(found.z_s)}, and the solver returned {layout} ({gpus} GPUs).", lead="Z ="),
        Paragraph(f"{many} {binds}", lead="Degenerate:" if found.layouts > 1 else ""),
        Paragraph(
            "`weft plan` lets latency depend on the load of each worker, and divides each latency by its SLO. Then it "
            "simulates the best layouts under the service's policy."
        ),
    ]


def as_printed_body(found: PrintedOptimum) -> Json:
    """Return the same as JSON-ready data; latencies in seconds."""
    return {
        "z": found.z_s,
        "groups": [
            {"role": g.role, "degree": degree_to_json(g.degree), "replicas": g.replicas, "pool": g.pool}
            for g in found.groups
        ],
        "optimalLayouts": found.layouts,
        "leastGPUs": found.least,
        "gpus": found.budget,
        "itlBinds": found.itl_binds,
        "workers": {
            role: [
                {
                    "pool": kind.pool, "degree": degree_to_json(kind.degree), "seconds": kind.seconds,
                    "optimal": kind in found.allowed,
                }
                for kind in found.kinds
                if kind.role == role
            ]
            for role in ROLES
        },
    }  # fmt: skip
