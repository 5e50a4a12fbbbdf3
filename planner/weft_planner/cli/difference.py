"""``weft plan --diff OLD``: what changes from an old plan or a live service, and why."""

from collections.abc import Mapping
from typing import cast

from weft_cli.output import emit
from weft_planner.cli.service import Service
from weft_planner.cli.stored import StoredPlan

Json = Mapping[str, object]


def show_difference(before: StoredPlan, result: Json, *, service: Service, output: str) -> int:
    """Print what changes from ``before`` to the answer's plan; return 0."""
    from weft_core.plan import plan_from_json
    from weft_planner.difference import compare_plans, difference_to_json
    from weft_planner.tables import text_of
    from weft_planner.tables.difference import difference_parts

    after = plan_from_json(cast(Json, result["plan"]))
    spec = service.document.get("spec")
    found = compare_plans(
        before.plan,
        after,
        old_spec=before.spec,
        new_spec=cast(Json, spec) if isinstance(spec, Mapping) else None,
        as_written=before.as_written,
    )
    emit(
        output,
        {**result, "difference": difference_to_json(found)},
        lambda: text_of(difference_parts(found, old=before.plan, new=after, name=service.name)),
    )
    return 0
