"""``weft explain PLAN``: why this plan, why not the others, what it rests on."""

import click

from weft_planner.cli.output import emit, output_option


@click.command()
@click.argument("plan", metavar="PLAN")
@click.option("--name", help="Which service, when the file has several.")
@output_option
def explain(*, plan: str, name: str | None, output: str) -> int:
    """Explain a stored plan: what binds it, what was close, what it assumes.

    PLAN is a file that `weft plan -o json` or `-o yaml` wrote, or a service as `kubectl get dis NAME -o yaml` prints
    it; - reads stdin.
    """
    from dataclasses import asdict

    from weft_core.plan import plan_to_json
    from weft_planner.cli.stored import stored_plan
    from weft_planner.explanation import explain as explained
    from weft_planner.tables import text_of
    from weft_planner.tables.explanation import explanation_parts

    stored = stored_plan(plan, name=name)
    found = explained(stored.plan)
    emit(
        output,
        {"plan": plan_to_json(stored.plan), "explanation": asdict(found)},
        lambda: text_of(explanation_parts(found, stored.plan, name=stored.name)),
    )
    return 0
