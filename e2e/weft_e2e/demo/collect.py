"""Put the demo's measurements together into its facts, and write them down."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from weft_core.durations import parse_duration
from weft_core.plan import Plan
from weft_core.slo import Slo
from weft_e2e.demo import page
from weft_e2e.demo.baseline import POLICY
from weft_e2e.demo.engines import engine_pace, transfer_problems
from weft_e2e.demo.facts import Baseline, Facts, gpu_words
from weft_e2e.demo.measures import summarise
from weft_e2e.demo.playing import ReplayRun
from weft_e2e.demo.settings import CLUSTER, REPLAY_DEADLINE_S
from weft_e2e.demo.steps import Steps
from weft_e2e.metrics import KvFlow, MetricMissing, growth, kv_flow
from weft_e2e.service import Service


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service ran, in the report's words: machine, GPUs, what was simulated, where to look further."""

    words: str
    gpu: str
    simulated: tuple[str, ...]
    next_steps: tuple[str, ...]


def collect(
    service: Service,
    manifest: Mapping[str, Any],
    played: ReplayRun,
    *,
    baseline: ReplayRun | None,
    words: str,
    choices: Sequence[str],
    restarted: Counter[str],
    context: str | None,
    steps: Steps,
) -> Facts:
    """Put everything measured on a cluster together, and name every problem."""
    spec = manifest["spec"]
    return facts_of(
        service.name,
        service.weighed_plan() or service.plan(),
        spec,
        played,
        baseline=baseline,
        place=Place(
            words=words,
            gpu=f"{gpu_words(spec)}{' (simulated)' if context is None else ''}",
            simulated=simulated(spec, local=context is None),
            next_steps=next_steps(service, context=context),
        ),
        choices=choices,
        problems=[f"container {name} was restarted during the replay" for name in sorted(+restarted)],
        steps=steps,
    )


def facts_of(
    name: str,
    plan: Plan,
    spec: Mapping[str, Any],
    played: ReplayRun,
    *,
    baseline: ReplayRun | None,
    place: Place,
    choices: Sequence[str],
    problems: Sequence[str],
    steps: Steps,
    mock: bool = True,
    deadline_s: float = REPLAY_DEADLINE_S,
) -> Facts:
    """Put everything measured together, and name every problem; only mock engines tell of refused transfers."""
    slo, result = slo_of(spec["slo"]), played.result
    kv, found = _counted(played, mock=mock, deadline_s=deadline_s)
    beside: Baseline | None = None
    if baseline is not None:
        flow, more = _counted(baseline, mock=mock, deadline_s=deadline_s)
        found += [f"baseline: {problem}" for problem in more]
        local = sum(record.route == "local" for record in baseline.result.records)
        if local:
            found.append(f"baseline: {local} prefills ran on a decode worker, though all were to be remote")
        beside = Baseline(
            policy=POLICY,
            summary=summarise(baseline.result.records, slo),
            records=baseline.result.records,
            kv=flow,
            load=baseline.result.load,
            pace=engine_pace(baseline.before, baseline.after),
        )
    return Facts(
        service=name,
        model=spec["model"]["name"],
        gpu=place.gpu,
        cluster=place.words,
        version=version("weft"),
        started_at=result.started_at,
        slo=slo,
        plan=plan,
        summary=summarise(result.records, slo),
        records=result.records,
        kv=kv,
        load=result.load,
        pace=engine_pace(played.before, played.after),
        choices=tuple(choices),
        simulated=place.simulated,
        steps=tuple(steps.done),
        problems=(*found, *problems),
        next_steps=place.next_steps,
        baseline=beside,
    )


def _counted(played: ReplayRun, *, mock: bool, deadline_s: float) -> tuple[KvFlow | None, list[str]]:
    """Return how KV moved in a replay, None where nothing tells, and every problem of the replay."""
    result, found = played.result, list[str]()
    kv: KvFlow | None = None
    try:
        kv = kv_flow(growth(played.before, played.after))
        if mock:
            found += transfer_problems(played.before, played.after)
    except MetricMissing as missing:
        found.append(str(missing))
    if result.failures:
        kinds = ", ".join(f"{n} {o}" for o, n in Counter(r.outcome for r in result.failures).most_common())
        found.append(f"{len(result.failures)} of {len(result.records)} rounds failed: {kinds}")
    if result.deadline_hit:
        found.append(f"the replay did not end within {deadline_s:g} s")
    return kv, found


def slo_of(spec: Mapping[str, Any]) -> Slo:
    """Return the SLO of a spec, with the API's defaults."""
    return Slo(
        ttft_s=parse_duration(spec["ttft"]),
        itl_s=parse_duration(spec["itl"]),
        percentile=spec.get("percentile", 95),
        attainment=spec.get("attainment", 0.9),
    )


def simulated(spec: Mapping[str, Any], *, local: bool) -> tuple[str, ...]:
    """Say what stood in for the real thing."""
    said = []
    if local:
        said.append("GPUs and RDMA devices: each node claims to have 8, so that Kubernetes schedules as if it had")
    if spec["engine"]["type"] == "mock":
        said += mock_engine(spec, scale=spec["engine"].get("mock", {}).get("timeScale", 1))
    said.append(MADE_UP)
    return tuple(said)


MADE_UP = "prompts: made-up words of the recorded token counts; the answers are made up likewise"


def mock_engine(spec: Mapping[str, Any], *, scale: float) -> list[str]:
    """Say what a mock engine at a time scale leaves out."""
    pace = "in real time" if scale == 1 else f"at {1 / scale:g} times its speed: divide no figure by it"
    source = "measured" if "ref" in spec.get("profile", {}) else "derived from data sheets, not measured"
    return [
        f"the engine: it computes no model and follows a cost profile ({source}) {pace}",
        "KV transfers: they take the time the profile says for their size; no such bytes cross the network",
    ]


def next_steps(service: Service, *, context: str | None) -> tuple[str, ...]:
    """Say where to look further."""
    kubectl = f"kubectl --context {context}" if context else f".venv/bin/weft cluster kubectl --name {CLUSTER}"
    where = f" KUBE_CONTEXT={context}" if context else ""
    scope = f"-n {service.namespace}"
    return (
        f"the service as Kubernetes shows it: `{kubectl} get dis,sts,pods {scope}`",
        f"the plan in full and why it was chosen: `{kubectl} describe dis {service.name} {scope}`",
        f"what the operator sees, and how it replanned: `{kubectl} describe dis drift {scope}`",
        f"ask for another SLO or objective and watch: `{kubectl} edit dis {service.name} {scope}`",
        f"agents that call tools instead: `make demo{where} DEMO_ARGS='--trace gaia_whowhen'`",
        "every figure of every round: `records.json` beside the report; how they were taken: `docs/demo.md`",
        f"remove everything: `make demo-down{where}`",
    )


def figures_of(facts: Facts) -> dict[str, Any]:
    """Return the figures in a form for JSON: all but the rounds, which have files of their own, and the plan."""
    figures = asdict(replace(facts, replans=()))
    for name in ("records", "plan", "replans"):
        del figures[name]
    if facts.baseline is not None:
        del figures["baseline"]["records"]
    return figures


def write(facts: Facts, out: Path) -> None:
    """Write the report and the figures behind it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(page.render(facts))
    figures = figures_of(facts)
    figures["replans"] = [
        {
            "plans": one.last.plans,
            "why": one.last.why,
            "diff": one.last.diff,
            "rounds": asdict(one.last.rounds),
            "facts": one.story.facts,
        }
        for one in facts.replans
    ]
    (out / "figures.json").write_text(json.dumps(figures, indent=1, default=str) + "\n")
