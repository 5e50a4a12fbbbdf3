"""What is said once a service can be asked, as lines for a terminal. Pure."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from weft_core.layouts import WORKER_ROLES
from weft_core.plan import Plan
from weft_core.slo import Slo
from weft_e2e.demo.facts import group_words, limit_words, seconds_words
from weft_e2e.local.rendering import TOKEN

_NAME = 12


def render(
    *,
    name: str,
    model: str,
    plan: Plan,
    slo: Slo,
    engines: str,
    url: str,
    ready_s: float,
    plan_s: float,
    folder: Path,
    workers: Sequence[tuple[str, str]],
    left_out: Sequence[str],
) -> str:
    """Return the whole table, without a trailing newline; ``workers`` are names and roles, where these may change."""
    groups = ", ".join(group_words(g) for g in plan.groups)
    policy = plan.policy
    rule = "" if policy is None else f"; policy {policy.route}{f' ({policy.mode})' if policy.mode else ''}"
    lines = [
        f"{name}: {model} on {engines}",
        "",
        _row("Plan", f"{groups}; {plan.gpus} GPUs{rule}"),
        *(_row("Predicted" if k == 0 else "", line) for k, line in enumerate(predicted(plan, slo))),
        _row("Ready", f"in {ready_s:.1f} s ({plan_s:.1f} s of it for the plan)"),
        _row("URL", f"{url}/v1"),
        _row("Try", curl(url, model)),
        _row("Decisions", decisions(url, folder)),
        _row("Metrics", f"{url}/metrics"),
        _row("Logs", str(folder)),
    ]
    if workers:
        lines.append(_row("Workers", ", ".join(f"{name} {role}" for name, role in workers)))
        lines.append(_row("", f"another role: weft local role {workers[0][0]} {' | '.join(WORKER_ROLES)}"))
    lines += [_row("Not as told" if k == 0 else "", item) for k, item in enumerate(left_out)]
    return "\n".join(lines)


def predicted(plan: Plan, slo: Slo) -> list[str]:
    """Return the plan's figures beside the SLO, a line for each."""
    found, percent = plan.predicted, f"P{slo.percentile:g}"
    ttft = f"TTFT {percent} {seconds_words(found.ttft_p95_s)} (SLO {limit_words(slo.ttft_s)})"
    lines = [f"{ttft}, ITL {percent} {seconds_words(found.itl_p95_s)} (SLO {limit_words(slo.itl_s)})"]
    if found.attainment is not None:
        lines.append(f"{100 * found.attainment.value:.1f} % within the SLO ({100 * slo.attainment:g} % asked for)")
    if not found.slo_met:
        lines.append("the plan expects a missed SLO: `weft plan` says why, and what would help")
    return lines


def curl(url: str, model: str) -> str:
    """Return a command that asks for a streamed answer; again, with the answer in messages, it goes on."""
    body = {"model": model, "stream": True, "max_tokens": 32, "messages": [{"role": "user", "content": "Hello"}]}
    words = [
        "curl", "-N", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-H", "X-Session-Id: trial",
        "-d", json.dumps(body),
    ]  # fmt: skip
    return shlex.join(words)


def decisions(url: str, folder: Path) -> str:
    """Return a command that shows where the last prefills went, and why."""
    token = shlex.quote(str(folder / TOKEN))
    return f"WEFT_TOKEN_FILE={token} {shlex.quote(sys.executable)} -m weft_router.ask {url}/debug/decisions"


def _row(name: str, text: str) -> str:
    return f"{name:<{_NAME}}{text}".rstrip()
