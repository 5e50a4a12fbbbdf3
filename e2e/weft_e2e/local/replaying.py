"""Replay the demo's sessions through a local service and write the demo's report."""

import json
import time
from dataclasses import replace
from pathlib import Path

from weft_e2e.demo import baseline
from weft_e2e.demo.facts import Facts, gpu_words
from weft_e2e.demo.playing import ReplayRun, choose_sessions, play_and_count
from weft_e2e.demo.settings import TRACE_LIMITS
from weft_e2e.demo.steps import Say, Steps
from weft_e2e.local.run import Options, Running
from weft_e2e.replay.client import Target
from weft_e2e.replay.records import save
from weft_e2e.replay.selection import Limits, Selection
from weft_e2e.replay.workload import fit_workload
from weft_planner.workload.file import spec_form

LONGEST_ARRIVALS_S = 120.0
"""Sessions arrive at the rate of the file, but all of them within this."""
LAST_SESSION_S = 190.0
"""How long the last session may take after it has arrived."""


def replay_and_report(running: Running, options: Options, steps: Steps, say: Say) -> int:
    """Replay, say and write what was measured; return 1 when anything failed, else 0."""
    selection, choices, deadline_s = choose(running, options)
    target = Target(url=running.url, model=running.service.object.spec.model.name, run=f"local-{int(time.time())}-")
    with steps.step(f"Replay {len(selection.sessions)} sessions, {selection.rounds} rounds") as detail:
        played = play_and_count(selection, target, running.metrics_pages, deadline_s=deadline_s, detail=detail)
    beside, alone = None, baseline.why_no_baseline(running.service.spec, running.rendering.record.plan)
    if not alone:
        target = replace(target, run=f"{target.run}{baseline.CLASS}-", request_class=baseline.CLASS)
        with steps.step(baseline.STEP) as detail:
            beside = play_and_count(
                selection, target, running.metrics_pages, deadline_s=deadline_s, detail=detail, salt=baseline.SALT
            )
    facts = _facts(
        running,
        options,
        played,
        baseline=beside,
        choices=(*choices, *baseline.notes(alone)),
        steps=steps,
        deadline_s=deadline_s,
    )
    write(facts, options.report)
    save(played.result, options.report.parent / "records.json")
    if beside is not None:
        save(beside.result, options.report.parent / "records-baseline.json")
    from weft_e2e.demo import table

    say(f"\n{table.render(facts)}\n")
    say(f"Report: {options.report} (in all {steps.total_s:.0f} s)")
    return 1 if facts.problems else 0


def choose(running: Running, options: Options) -> tuple[Selection, tuple[str, ...], float]:
    """Return the sessions, what was chosen about them, and the seconds within which all must end."""
    trace = options.replay or ""
    capped: tuple[str, ...] = ()
    limits = options.limits
    if limits is None:
        limits, capped = limits_for(
            TRACE_LIMITS[trace],
            sessions=options.sessions,
            rate=running.service.arrival_rate,
            context_tokens=running.service.object.spec.model.max_model_len,
        )
    selection = choose_sessions(trace, limits)
    fitted = fit_workload(selection.sessions, name=selection.trace, within_s=limits.arrivals_within_s)
    alike = running.service.manifest["spec"]["workload"] == spec_form(fitted.body)
    words = (
        "spec.workload holds distributions fitted to these sessions"
        if alike
        else "the plan is for the file's spec.workload, which is not fitted to these sessions: compare with care"
    )
    return selection, (*selection.notes, *capped, words), limits.arrivals_within_s + LAST_SESSION_S


def limits_for(
    limits: Limits, *, sessions: int | None, rate: float, context_tokens: int
) -> tuple[Limits, tuple[str, ...]]:
    """Return a trace's limits at the rate and context length of a service, and what had to be changed about them."""
    count = limits.sessions if sessions is None else sessions
    within = count / rate
    capped: tuple[str, ...] = ()
    if within > LONGEST_ARRIVALS_S:
        asked = f"the {within:.0f} s of the file's {rate:g} sessions/s"
        capped = (f"sessions arrive within {LONGEST_ARRIVALS_S:g} s instead of {asked}",)
    tokens = min(limits.max_context_tokens, context_tokens)
    within = min(within, LONGEST_ARRIVALS_S)
    return replace(limits, sessions=count, arrivals_within_s=within, max_context_tokens=tokens), capped


def _facts(
    running: Running,
    options: Options,
    played: ReplayRun,
    *,
    baseline: ReplayRun | None,
    choices: tuple[str, ...],
    steps: Steps,
    deadline_s: float,
) -> Facts:
    from weft_e2e.demo.collect import MADE_UP, Place, facts_of, mock_engine

    spec = running.service.spec
    simulated = [MADE_UP]
    if running.mock:
        given = options.time_scale
        scale = spec["engine"].get("mock", {}).get("timeScale", 1) if given is None else given
        nothing = "GPUs and nodes: there are none; router and engines are processes of this machine"
        simulated = [nothing, *mock_engine(spec, scale=scale), *simulated]
    return facts_of(
        running.service.object.metadata.name,
        running.rendering.record.plan,
        spec,
        played,
        baseline=baseline,
        place=Place(
            words="this machine, without Kubernetes",
            gpu=f"{gpu_words(spec)}{' (simulated)' if running.mock else ''}",
            simulated=tuple(simulated),
            next_steps=(
                f"ask it yourself: `weft local -f {options.file}` serves until Ctrl-C",
                f"the plan in full and why it was chosen: `weft plan -f {options.file}`",
                f"the same on Kubernetes: `kubectl apply -f {options.file}`",
            ),
        ),
        choices=choices,
        problems=(),
        steps=steps,
        mock=running.mock,
        deadline_s=deadline_s,
    )


def write(facts: Facts, report: Path) -> None:
    """Write the report, and beside it every figure."""
    from weft_e2e.demo import page
    from weft_e2e.demo.collect import figures_of

    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page.render(facts))
    (report.parent / "figures.json").write_text(json.dumps(figures_of(facts), indent=1, default=str) + "\n")
