"""Write the top of the page: what to run, what it gives, what it costs, in a manager's words."""

import math
from html import escape

from weft_core.layouts import layout_name
from weft_core.plan import Plan
from weft_planner.report import html
from weft_planner.report.facts import Facts
from weft_planner.tables import figures
from weft_planner.tables.plan import BY_LAYOUT, policy_name
from weft_planner.tables.remedies import shortfall_words


def verdict(facts: Facts) -> str:
    """Return the answer in one sentence, and the reason."""
    plan, request = facts.plan, facts.request
    name = name_of(facts)
    held = plan.predicted.slo_met
    said = "holds the service levels" if held else "misses the service levels"
    head = f"{name} on {plan.gpus} GPUs {said} at {request.workload.arrival_rate:g} sessions per second"
    more = "" if plan.shortfall is None else html.paragraph(shortfall_words(plan.shortfall))
    more += html.paragraph(_smaller(facts)) if _smaller(facts) else ""
    return (
        f'<div class="verdict{"" if held else " missed"}"><strong>{escape(head)}</strong>'
        f"{html.paragraph(plan.reason)}{more}</div>"
    )


def name_of(facts: Facts) -> str:
    """Return the chosen layout in short."""
    return layout_name(facts.plan.groups, facts.plan.layout, named=len(facts.request.capacity.pools) > 1)


def _smaller(facts: Facts) -> str:
    """Name the smallest layout that would do too, where it is smaller than the chosen one."""
    rows = [row for row in facts.layouts if row.held and row.runnable and row.gpus < facts.plan.gpus]
    if not rows:
        return ""
    least = min(rows, key=lambda row: (row.gpus, row.ttft_s))
    return (
        f"The smallest that would do is {least.name} on {least.gpus} GPUs: TTFT {figures.latency(least.ttft_s)}, ITL "
        f"{figures.latency(least.itl_s)} and a goodput of {figures.rate_interval(least.goodput)} sessions per second."
    )


def cards(facts: Facts) -> str:
    """Return the key figures."""
    plan, slo, rate = facts.plan, facts.request.slo, facts.request.workload.arrival_rate
    predicted = plan.predicted
    percentile = f"P{slo.percentile:g}"
    found = [
        html.card("GPUs", f"{plan.gpus} of {facts.request.capacity.gpus}", ", ".join(_pools(plan))),
        html.card(
            f"Time to first token, {percentile}",
            figures.latency(predicted.ttft_p95_s),
            f"SLO {figures.latency(slo.ttft)}",
        ),
        html.card(
            f"Inter-token latency, {percentile}",
            figures.latency(predicted.itl_p95_s),
            f"SLO {figures.latency(slo.itl)}",
        ),
    ]
    if predicted.attainment is not None:
        low, high = 100 * predicted.attainment.low, 100 * predicted.attainment.high
        found.append(
            html.card(
                f"{slo.unit.capitalize()}s within the SLO",
                figures.share(predicted.attainment.value),
                f"{low:.0f} to {high:.0f} %, goal {slo.attainment:.0%}",
            )
        )
    if predicted.goodput is not None and math.isfinite(predicted.goodput.value):
        spare = predicted.goodput.value / rate - 1
        note = f"{spare:+.0%} against the planned {rate:g} /s" if predicted.goodput.value else "no load tried holds it"
        found.append(html.card("Goodput", f"{figures.rate(predicted.goodput.value)} /s", note))
    if predicted.cost_per_hour is not None:
        per_million = predicted.cost_per_million_tokens
        note = "" if per_million is None else f"{figures.money(per_million)} per million tokens"
        found.append(html.card("Cost per hour", figures.money(predicted.cost_per_hour), note))
    return f'<dl class="cards">{"".join(found)}</dl>'


def workers(facts: Facts) -> str:
    """Return the table of groups, with how busy they will be."""
    plan = facts.plan
    use = {(u.role, u.degree, u.pool): u for u in plan.predicted.use}
    header = ["role", "GPUs each", "workers", "GPUs", "pool", *(["busy", "fullest KV cache"] if use else [])]
    rows = []
    for group in plan.groups:
        row = [group.role, str(group.degree), str(group.replicas), str(group.gpus), group.pool]
        if use:
            found = use.get((group.role, group.degree, group.pool))
            row += [figures.share(found.utilisation), figures.share(found.kv_peak)] if found else ["-", "-"]
        rows.append(row)
    caption = f"{BY_LAYOUT[plan.layout].capitalize()}; routing {policy_name(plan.policy)}"
    return html.table(header, rows, caption=caption)


def ranking(facts: Facts) -> str:
    """Return all layouts that were considered, the chosen one first."""
    slo = facts.request.slo
    percentile = f"P{slo.percentile:g}"
    priced = any(row.cost_per_hour is not None for row in facts.layouts)
    header = ["layout", "policy", "GPUs", f"TTFT {percentile}", f"ITL {percentile}", "goodput, sessions/s"]
    header += [*(["cost per hour"] if priced else []), "holds the SLO", "can run now"]
    rows = []
    for row in facts.layouts:
        cells = [
            escape(row.name),
            escape(row.policy),
            str(row.gpus),
            figures.latency(row.ttft_s),
            figures.latency(row.itl_s),
            escape(figures.rate_interval(row.goodput)),
        ]
        rows.append(
            [
                *cells,
                *([figures.money(row.cost_per_hour)] if priced else []),
                html.yes_no(row.held),
                html.yes_no(row.runnable),
            ]
        )
    caption = (
        "P4x2 D8x1 reads: two prefill workers of 4 GPUs and one decode worker of 8 GPUs; B are workers with both "
        "roles, C co-located ones"
    )
    marked = [k for k, row in enumerate(facts.layouts) if row.chosen]
    return html.table(header, rows, caption=caption, words=(0, 1), marked=marked, raw=True)


def _pools(plan: Plan) -> list[str]:
    counts: dict[str, int] = {}
    for group in plan.groups:
        counts[group.pool] = counts.get(group.pool, 0) + group.gpus
    return [f"{gpus} in pool {pool}" for pool, gpus in sorted(counts.items())]
