"""``weft plan --kv-tiers``: what memory below the GPUs would bring to a plan."""

from collections.abc import Mapping, Sequence
from typing import cast

import click

from weft_cli.output import emit
from weft_planner.cli.planning import plan_text
from weft_planner.cli.ranges import TierSizes
from weft_planner.cli.service import Service

Json = Mapping[str, object]


def show_with_tiers(
    result: Json, service: Service, sizes: Sequence[TierSizes], *, top: int | None, output: str
) -> bool:
    """Print a plan, and its workers with the service's own tiers and with each of ``sizes``; True after Ctrl-C.

    What was simulated by then is printed.
    """
    from weft_core.plan import plan_from_json
    from weft_planner.cli.progress import show_progress
    from weft_planner.request.parts import KVTierSize
    from weft_planner.study.kv_tiers import TierRow, tier_rows
    from weft_planner.tables import text_of
    from weft_planner.tables.kv_tiers import tier_body, tier_parts

    plan, request = plan_from_json(cast(Json, result["plan"])), service.request
    given = [tuple(KVTierSize(name=name, size=size) for name, size in one) for one in sizes]
    choices = list(dict.fromkeys([request.engine.kv_tiers, *given]))
    rows: list[TierRow] = []
    interrupted = False
    with show_progress() as progress:
        try:
            rows.extend(tier_rows(request, plan, choices, progress=progress))  # row by row: Ctrl-C keeps them
        except KeyboardInterrupt:
            interrupted = True
            click.echo(f"weft plan: interrupted after {len(rows)} of {len(choices)} sets of tiers", err=True)

    def text() -> str:
        below = [text_of(tier_parts(plan, rows, request=request))] if rows else []
        return "\n\n".join([plan_text(result, service, top=top), *below])

    emit(output, {**result, "kvTiers": tier_body(rows)}, text)
    return interrupted
