"""``weft plan --rate-match``: the ratio of context to generation servers for TensorRT-LLM."""

from collections.abc import Mapping
from importlib.metadata import version

import click

from weft_cli.output import emit
from weft_core.parallelism import Degree
from weft_planner.cli.service import Service


def show_rate_match(service: Service, *, output: str, report: str | None = None) -> int:
    """Print the matched rates, and write their page to ``report``; 0, or 1 when no server holds the SLO."""
    from weft_planner.rate_match import NoMatch, match_rates, rounds_of
    from weft_planner.rate_match.json_form import body_of
    from weft_planner.request.costs import profile_of
    from weft_planner.request.infeasible import Infeasible
    from weft_planner.tables import refusal_parts, text_of
    from weft_planner.tables.rate_match import rate_match_parts
    from weft_planner.workload.sessions import draw

    request = service.request
    slo = request.slo
    try:
        profile = profile_of(request)
        sample = draw(
            request.workload,
            max_model_len=request.model.max_model_len,
            round_seconds=slo.ttft + request.workload.mean_decode * slo.itl,
            seed=request.seed,
        )
        found = match_rates(
            profile,
            rounds_of(sample, seed=request.seed),
            context_degrees=_degrees(service, "prefill", profile.degrees),
            generation_degrees=_degrees(service, "decode", profile.degrees),
            ttft_s=slo.ttft,
            itl_s=slo.itl,
            percentile=slo.percentile,
            bidirectional=request.engine.bidirectional,
        )
    except (Infeasible, NoMatch) as error:
        reason = error.reason if isinstance(error, Infeasible) else "SLOInfeasible"
        message = str(error)
        name = service.name or request.model.name
        body = {"status": "infeasible", "reason": reason, "message": message}
        emit(output, body, lambda: text_of(refusal_parts(name, reason, message, None)))
        return 1
    rate = request.workload.arrival_rate * request.workload.mean_rounds
    emit(
        output,
        {"status": "ok", "rateMatching": body_of(found, rounds_per_s=rate)},
        lambda: text_of(rate_match_parts(found, request=request, name=service.name, rounds_per_s=rate)),
    )
    if report is not None:
        from weft_planner.cli.report import write_page
        from weft_planner.report.rate_match import rate_match_page

        name = service.name or request.model.name
        write_page(report, rate_match_page(found, request=request, name=name, version=version("weft")))
        click.echo(f"weft plan: report written: {report}", err=True)
    return 0


def _degrees(service: Service, role: str, known: Mapping[Degree, object]) -> list[Degree]:
    pools = [pool for pool in service.request.capacity.pools if role in pool.roles]
    listed = {degree for pool in pools for degree in pool.usable_degrees}
    if not listed & set(known):
        raise click.ClickException(f"capacity.pools: no degree for role {role} in the cost profile; add one")
    return sorted(listed & set(known))
