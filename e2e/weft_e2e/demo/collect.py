"""Put the demo's measurements together into its facts, and write them down."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from weft_core.durations import parse_duration
from weft_core.slo import Slo
from weft_e2e.demo import page
from weft_e2e.demo.engines import engine_pace, transfer_problems
from weft_e2e.demo.facts import Facts
from weft_e2e.demo.measures import summarise
from weft_e2e.demo.settings import CLUSTER, REPLAY_DEADLINE_S
from weft_e2e.demo.steps import Steps
from weft_e2e.metrics import KvFlow, MetricMissing, growth, kv_flow
from weft_e2e.replay.records import ReplayResult
from weft_e2e.service import Service


def collect(
    service: Service,
    manifest: Mapping[str, Any],
    result: ReplayResult,
    *,
    before: Mapping[str, str],
    after: Mapping[str, str],
    words: str,
    choices: Sequence[str],
    restarted: Counter[str],
    context: str | None,
    steps: Steps,
) -> Facts:
    """Put everything measured together, and name every problem."""
    spec = manifest["spec"]
    slo = slo_of(spec["slo"])
    problems: list[str] = []
    kv: KvFlow | None = None
    try:
        kv = kv_flow(growth(before, after))
        problems += transfer_problems(before, after)
    except MetricMissing as missing:
        problems.append(str(missing))
    if result.failures:
        kinds = ", ".join(f"{n} {o}" for o, n in Counter(r.outcome for r in result.failures).most_common())
        problems.append(f"{len(result.failures)} of {len(result.records)} rounds failed: {kinds}")
    if result.deadline_hit:
        problems.append(f"the replay did not end within {REPLAY_DEADLINE_S:g} s")
    problems += [f"container {name} was restarted during the replay" for name in sorted(+restarted)]
    gpu_types = sorted({p["gpuType"] for p in spec["capacity"]["pools"]})
    return Facts(
        service=service.name,
        model=spec["model"]["name"],
        gpu=f"{spec['capacity']['gpus']} x {', '.join(gpu_types)}{' (simulated)' if context is None else ''}",
        cluster=words,
        version=version("weft"),
        started_at=result.started_at,
        slo=slo,
        plan=service.plan(),
        summary=summarise(result.records, slo),
        records=result.records,
        kv=kv,
        load=result.load,
        pace=engine_pace(before, after),
        choices=tuple(choices),
        simulated=simulated(spec, local=context is None),
        steps=tuple(steps.done),
        problems=tuple(problems),
        next_steps=next_steps(service, context=context),
    )


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
        scale = spec["engine"].get("mock", {}).get("timeScale", 1)
        pace = "in real time" if scale == 1 else f"at {1 / scale:g} times its speed: divide no figure by it"
        source = "measured" if "ref" in spec.get("profile", {}) else "derived from data sheets, not measured"
        said.append(f"the engine: it computes no model and follows a cost profile ({source}) {pace}")
        said.append("KV transfers: they take the time the profile says for their size; no such bytes cross the network")
    said.append("prompts: made-up words of the recorded token counts; the answers are made up likewise")
    return tuple(said)


def next_steps(service: Service, *, context: str | None) -> tuple[str, ...]:
    """Say where to look further."""
    kubectl = f"kubectl --context {context}" if context else f".venv/bin/weft cluster kubectl --name {CLUSTER}"
    where = f" KUBE_CONTEXT={context}" if context else ""
    scope = f"-n {service.namespace}"
    return (
        f"the service as Kubernetes shows it: `{kubectl} get dis,sts,pods {scope}`",
        f"the plan in full and why it was chosen: `{kubectl} describe dis {service.name} {scope}`",
        f"ask for another SLO or objective and watch: `{kubectl} edit dis {service.name} {scope}`",
        f"long coding sessions instead: `make demo{where} DEMO_ARGS='--trace claude_code'`",
        "every figure of every round: `records.json` beside the report; how they were taken: `docs/demo.md`",
        f"remove everything: `make demo-down{where}`",
    )


def write(facts: Facts, out: Path) -> None:
    """Write the report and the figures behind it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.html").write_text(page.render(facts))
    figures = {k: v for k, v in asdict(facts).items() if k not in ("records", "plan")}
    (out / "figures.json").write_text(json.dumps(figures, indent=1, default=str) + "\n")
