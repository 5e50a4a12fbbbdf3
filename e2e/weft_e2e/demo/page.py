"""Write the demo's report: one HTML file that needs nothing beside it. Pure."""

import base64
from collections.abc import Sequence
from html import escape
from importlib import resources

from weft_e2e.demo import comparison, plots
from weft_e2e.demo.facts import (
    Facts,
    bytes_words,
    drift_words,
    group_words,
    hidden_reading,
    kv_words,
    latency_rows,
    limit_words,
    load_findings,
    load_words,
    planned_share,
    seconds_words,
    share_words,
    shown_readings,
    slo_words,
    source_words,
)
from weft_e2e.demo.scene import Drifted
from weft_e2e.replay.records import RoundRecord

_MOST_FAILURES_SHOWN = 25


def render(facts: Facts) -> str:
    """Return the whole page."""
    css = resources.files("weft_e2e.demo").joinpath("page.css").read_text()
    body = "\n".join(
        part
        for part in (
            _header(facts),
            _verdict(facts),
            _comparison(facts),
            _cards(facts),
            _simulated(facts),
            _plan(facts),
            _latency(facts),
            _routes(facts),
            _timeline(facts),
            _failures(facts),
            _attainment(facts),
            _replans(facts),
            _conditions(facts),
            _next(facts),
        )
        if part
    )
    title = escape(f"Weft demo: {facts.service}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>\n{css}</style>\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _header(facts: Facts) -> str:
    return (
        '<header><div class="mark">Weft demo report</div>'
        f"<h1>{escape(facts.model)} under recorded agent sessions</h1>"
        f'<p class="quiet">Service {escape(facts.service)} on {escape(facts.cluster)}; {escape(facts.gpu)}; '
        f"measured {escape(facts.started_at)}; Weft {escape(facts.version)}</p></header>"
    )


def _verdict(facts: Facts) -> str:
    summary = facts.summary
    attained = summary.default_attained
    failed = summary.rounds - summary.rounds_ok
    if failed or facts.problems:
        first = f"{failed} of {summary.rounds} rounds failed." if failed else "The demo met a problem."
        return _box("bad", first, "; ".join(facts.problems) or "See the list of failed rounds below.")
    share = share_words(attained.met, attained.total)
    words = f"{share} of the sessions met the SLO ({limit_words(facts.slo.ttft_s)} to the first token, "
    words += f"{limit_words(facts.slo.itl_s)} between tokens); {100 * facts.slo.attainment:g} % were asked for."
    if attained.share >= facts.slo.attainment:
        return _box("good", f"All {summary.rounds} rounds were served, and the SLO was held.", words)
    return _box("missed", f"All {summary.rounds} rounds were served, but the SLO was missed.", words)


def _box(kind: str, strong: str, words: str) -> str:
    return f'<div class="verdict {kind}"><strong>{escape(strong)}</strong><span>{escape(words)}</span></div>'


def _simulated(facts: Facts) -> str:
    if not facts.simulated:
        return ""
    return f'<div class="simulated"><h3>Simulated in this demo</h3>{_list(facts.simulated)}</div>'


def _comparison(facts: Facts) -> str:
    rows = comparison.rows(facts)
    purpose = f'<p class="lead">{escape(comparison.PURPOSE)}</p>'
    if not rows:
        return purpose
    body = "".join(
        f"<tr><td>{escape(row.name)}</td><td{_mark(row, 'service')}>{escape(row.service)}</td>"
        f"<td{_mark(row, 'baseline')}>{escape(row.baseline)}</td></tr>"
        for row in rows
    )
    table = (
        "<table><tr><th>the same sessions, on the same workers</th><th>Weft</th><th>always remote</th></tr>"
        f"{body}</table>"
    )
    other = facts.baseline
    curve = plots.compared_curve(facts.records, () if other is None else other.records, slo=facts.slo)
    picture = _panel(
        "Time to first token of later rounds", curve, "Share of later rounds by time to first token, with both routings"
    )
    notes = "".join(f"<li>{escape(words)}</li>" for words in comparison.caveats(facts))
    return (
        f'{purpose}<div class="two"><div class="panel">{table}</div>{picture}</div><ul class="quiet notes">{notes}</ul>'
    )


def _mark(row: comparison.Row, side: str) -> str:
    return ' class="best"' if row.better == side else ""


def _cards(facts: Facts) -> str:
    summary = facts.summary
    attained = summary.default_attained
    cards = [
        (f"{summary.sessions}", f"sessions, {summary.rounds} rounds, up to {summary.most_at_once} at once"),
        (f"{100 * attained.share:.1f} %", f"of sessions met the SLO ({attained.met} of {attained.total})"),
    ]
    if summary.ttft_all is not None:
        cards.append((seconds_words(summary.ttft_all.p95), f"TTFT P95; SLO {_unbroken(limit_words(facts.slo.ttft_s))}"))
    if summary.itl_rounds is not None:
        cards.append(
            (seconds_words(summary.itl_rounds.p95), f"ITL P95 of rounds; SLO {_unbroken(limit_words(facts.slo.itl_s))}")
        )
    if summary.rounds_ok:
        remote = summary.routes.get("remote", 0)
        cards.append((f"{100 * remote / summary.rounds_ok:.0f} %", f"of prefills remote ({remote} rounds)"))
    if facts.kv is not None:
        moved = facts.kv.prefill_to_decode_bytes + facts.kv.decode_to_prefill_bytes
        cards.append((bytes_words(moved), "of KV moved, both ways"))
        cards.append((f"{facts.kv.history_recomputed_tokens:,.0f}", "history tokens recomputed"))
    inner = "".join(f'<div class="card"><b>{escape(b)}</b><span>{escape(s)}</span></div>' for b, s in cards)
    return f'<div class="cards">{inner}</div>'


def _unbroken(text: str) -> str:
    return text.replace(" ", "\u00a0")


def _plan(facts: Facts) -> str:
    plan = facts.plan
    rows = [
        (group_words(g), f"{g.gpus} GPUs", g.pool)
        for g in sorted(plan.groups, key=lambda g: (g.role != "prefill", g.degree))
    ]
    table = "".join(
        f'<tr><td>{escape(a)}</td><td>{escape(b)}</td><td class="words">{escape(c)}</td></tr>' for a, b, c in rows
    )
    expects = "expects the SLO to be met" if plan.predicted.slo_met else "expects the SLO to be missed"
    reason = f"<p>{escape(plan.reason)}</p>" if plan.reason else ""
    return (
        f'<h2>The plan</h2><div class="panel"><p>Objective <b>{escape(plan.objective)}</b>, {plan.gpus} GPUs, revision '
        f"<code>{escape(plan.revision)}</code>; it {expects} (TTFT P{facts.slo.percentile:g} "
        f"{seconds_words(plan.predicted.ttft_p95_s)}, ITL P{facts.slo.percentile:g} "
        f"{seconds_words(plan.predicted.itl_p95_s)}).</p>{reason}"
        f'<table class="narrow"><tr><th>workers</th><th>GPUs</th><th class="words">pool</th></tr>{table}</table></div>'
    )


def _latency(facts: Facts) -> str:
    percent = f"P{facts.slo.percentile:g}"
    rows = []
    for row in latency_rows(facts):
        measured = row.measured
        limit = facts.slo.itl_s if row.name.startswith("ITL") else facts.slo.ttft_s
        values = (None, None, None) if measured is None else (measured.p50, measured.p95, measured.mean)
        cells = "".join(_measured(v, limit) for v in values)
        plans = "".join(f'<td class="plan-cell">{"" if v is None else seconds_words(v)}</td>' for v in row.planned)
        count = "0" if measured is None else f"{measured.count:,}"
        rows.append(f"<tr><td>{escape(row.name)}</td><td>{count}</td>{cells}{plans}</tr>")
    table = (
        "<table><tr><th>measured at the client</th><th>count</th><th>P50</th><th>P95</th><th>mean</th>"
        f"<th>plan P50</th><th>plan {percent}</th><th>plan mean</th></tr>{''.join(rows)}</table>"
    )
    curves = (
        _panel(
            "Time to first token",
            plots.ttft_curve(facts.records, slo=facts.slo, plan=facts.plan),
            "Share of rounds by time to first token, first and later rounds, with the SLO and the plan's prediction",
        ),
        _panel(
            "Inter-token latency",
            plots.itl_curve(facts.records, slo=facts.slo, plan=facts.plan),
            "Share of gaps between tokens by length, with the SLO and the plan's prediction",
        ),
    )
    words = escape(_sentence(source_words(facts)))
    panels = f'<div class="panel">{table}</div><div class="two">{"".join(curves)}</div>'
    return f"<h2>Latency beside the plan</h2><p>{words}</p>{panels}"


def _measured(value: float | None, limit: float) -> str:
    if value is None:
        return "<td>-</td>"
    return f"<td{' class=over' if value > limit else ''}>{seconds_words(value)}</td>"


def _routes(facts: Facts) -> str:
    summary = facts.summary
    routed = summary.rounds_ok
    routes = "; ".join(f"{name} {share_words(n, routed)}" for name, n in sorted(summary.routes.items())) or "none"
    reasons = "; ".join(f"{name}: {n}" for name, n in sorted(summary.reasons.items(), key=lambda i: -i[1])) or "none"
    panels = [
        _panel(
            "Time to first token by tokens added",
            plots.ttft_by_tokens(facts.records, slo=facts.slo),
            "Each round's time to first token against the tokens it added, by route",
        )
    ]
    moved = ""
    if facts.kv is not None:
        way, history = kv_words(facts.kv)
        moved = f"<p>KV moved: {escape(way)}. History tokens of later rounds: {escape(history)}.</p>"
        panels.append(
            _panel(
                "KV cache on the wire", plots.kv_bars(facts.kv), "KV bytes moved each way, history read or recomputed"
            )
        )
    else:
        panels.append('<div class="panel"><h3>KV cache on the wire</h3><p>Not measured.</p></div>')
    return (
        f"<h2>Where prefill ran, and what moved</h2><p>Routes: {escape(routes)}. Reasons given by the router: "
        f'{escape(reasons)}.</p>{moved}<div class="two">{"".join(panels)}</div>'
    )


def _timeline(facts: Facts) -> str:
    picture = plots.timeline(facts.records)
    return f"<h2>Every session, round by round</h2>{_panel('', picture, 'Timeline of sessions and rounds by route')}"


def _failures(facts: Facts) -> str:
    failed = [r for r in facts.records if not r.ok]
    if not failed:
        return ""
    rows = "".join(_failure(r) for r in failed[:_MOST_FAILURES_SHOWN])
    more = len(failed) - _MOST_FAILURES_SHOWN
    note = f"<p class=quiet>{more} more are in records.json.</p>" if more > 0 else ""
    return (
        f'<h2>Rounds that failed</h2><div class="panel"><table><tr><th>session</th><th>round</th>'
        f'<th>sent at</th><th class="words">outcome</th><th class="words">what it said</th></tr>{rows}</table>'
        f"{note}</div>"
    )


def _failure(record: RoundRecord) -> str:
    return (
        f"<tr><td>{escape(record.session)}</td><td>{record.index + 1}</td><td>{seconds_words(record.sent_s)}</td>"
        f'<td class="words">{escape(record.outcome)}</td><td class="words">{escape(record.error or "")}</td></tr>'
    )


def _attainment(facts: Facts) -> str:
    rows = "".join(
        f"<tr><td>{escape(str(a.reading))}{' (default)' if k == 0 else ''}</td>"
        f"<td>{a.met}</td><td>{a.total}</td><td>{100 * a.share:.1f} %</td>"
        f'<td class="plan-cell">{_share(planned_share(facts, a.reading))}</td></tr>'
        for k, a in enumerate(shown_readings(facts))
    )
    return (
        "<h2>SLO attainment under every reading</h2>"
        f"<p>The objective: {escape(slo_words(facts.slo))}. A share says nothing without how it was counted. "
        f"{escape(hidden_reading(facts))}</p>"
        '<div class="panel"><table><tr><th>reading</th><th>met</th><th>of</th><th>share</th><th>plan</th></tr>'
        f"{rows}</table></div>"
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _replans(facts: Facts) -> str:
    titles = ("When the traffic changed", "When it changed again")
    return "".join(_replan(one, title) for one, title in zip(facts.replans, titles, strict=False))


def _replan(one: Drifted, title: str) -> str:
    last = one.last
    seen = "".join(
        f'<tr><td>{at_s:.0f} s</td><td class="words">{escape(words)}</td></tr>' for at_s, words in one.story.facts
    )
    return (
        f"<h2>{title}</h2>"
        '<div class="panel plain">'
        f"<p>At a second service, <b>{escape(one.service)}</b>, {escape(last.arrives)}.</p>"
        f"{_list(drift_words(one))}</div>"
        + _panel("Its workers", plots.workers(one.story.scenes), "workers over time")
        + f'<div class="two"><div class="panel plain"><h3>What changed</h3>{_list(last.diff)}</div>'
        f'<div class="panel plain"><h3>What happened</h3><table>{seen}</table></div></div>'
    )


def _conditions(facts: Facts) -> str:
    steps = "".join(f"<tr><td>{escape(s.name)}</td><td>{seconds_words(s.seconds)}</td></tr>" for s in facts.steps)
    findings = load_findings(facts.load, facts.pace) or ("nothing of this was above the limits in docs/demo.md",)
    measured = (*load_words(facts.load, facts.pace), *findings)
    return (
        '<h2>How this was measured</h2><div class="two"><div class="panel plain"><h3>Sessions replayed</h3>'
        f"{_list(facts.choices)}</div>"
        f'<div class="panel plain"><h3>Client, machine and mock engines</h3>{_list(measured)}'
        f'<h3 style="margin-top:16px">Steps</h3><table>{steps}</table></div></div>'
    )


def _next(facts: Facts) -> str:
    if not facts.next_steps:
        return ""
    items = "".join(f"<li>{_with_code(step)}</li>" for step in facts.next_steps)
    return f'<h2>What to look at next</h2><div class="panel plain"><ul>{items}</ul></div>'


def _with_code(text: str) -> str:
    """Return escaped text in which parts between backquotes are shown as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if k % 2 else part for k, part in enumerate(parts))


def _panel(title: str, svg: str, alt: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="panel">{head}<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}"></div>'


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
