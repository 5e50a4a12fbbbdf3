"""Everything the table and the report say, in one value; nothing is in it that was not measured, planned or chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft_core.plan import Plan, PlannedGroup
from weft_core.prediction import LatencyQuantiles
from weft_core.slo import Reading, Slo
from weft_e2e.demo.engines import EnginePace
from weft_e2e.demo.measures import Attained, Distribution, Summary
from weft_e2e.demo.scene import IN_FORCE, Drifted
from weft_e2e.metrics import KvFlow
from weft_e2e.replay.records import ClientLoad, RoundRecord

# Above these the client or the machine was itself a cause of the figures (see docs/demo.md).
LAG_LIMIT_S = 0.02
BUSY_SHARE_LIMIT = 0.85
# A mock engine that gave up this much time ran slower than the profile it stands for.
LOST_LIMIT_S = 0.1


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One step of the demo and how long it took, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """The same sessions with every prefill on a prefill worker: ``policy`` is the routing policy."""

    policy: str
    summary: Summary
    records: tuple[RoundRecord, ...]
    kv: KvFlow | None
    load: ClientLoad
    pace: EnginePace | None


@dataclass(frozen=True, slots=True)
class Facts:
    """A finished demo: what was planned, sent, measured and left out."""

    service: str
    model: str
    gpu: str
    cluster: str
    version: str
    started_at: str
    slo: Slo
    plan: Plan
    summary: Summary
    records: tuple[RoundRecord, ...]
    kv: KvFlow | None
    load: ClientLoad
    pace: EnginePace | None
    choices: tuple[str, ...]
    simulated: tuple[str, ...]
    steps: tuple[DemoStep, ...]
    problems: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    baseline: Baseline | None = None
    """None where there is no other routing to compare with; ``choices`` says why."""
    replans: tuple[Drifted, ...] = ()
    """What became of a second service each time that its traffic changed."""


def drift_words(drifted: Drifted) -> list[str]:
    """Say what became of the second service when its traffic changed."""
    last = drifted.last
    if len(last.plans) == 1:
        return [f"{drifted.service}: {last.plans[0]} stayed, although {last.arrives} arrived"]
    applied = drifted.story.took_s(IN_FORCE)
    words = [f"{drifted.service}: {last.plans[0]} -> {last.plans[1]}, because {last.why}"]
    if applied is not None:
        words.append(f"active {applied:.0f} s after the traffic changed, alone after {last.at_s:.0f} s")
    rounds = last.rounds
    words.append(f"{rounds.served} rounds served meanwhile, {rounds.failed} failed")
    return words


def group_words(group: PlannedGroup) -> str:
    """Return a group as people say it: ``2 x TP4 prefill``."""
    return f"{group.replicas} x TP{group.degree} {group.role}"


def gpu_words(spec: Mapping[str, Any]) -> str:
    """Return how many GPUs of which types a spec has."""
    types = sorted({pool["gpuType"] for pool in spec["capacity"]["pools"]})
    return f"{spec['capacity']['gpus']} x {', '.join(types)}"


def seconds_words(value: float) -> str:
    """Return a time with three digits that matter and its unit."""
    if value == float("inf"):
        return "unbounded"
    if value < 0.00005:
        return "0 ms"
    if value < 0.9995:
        return f"{value * 1e3:.1f} ms" if value < 0.09995 else f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s" if value < 99.5 else f"{value:.0f} s"


def limit_words(value: float) -> str:
    """Return a threshold as a person would set it: ``2 s``, ``40 ms``."""
    return f"{value * 1e3:g} ms" if value < 1 else f"{value:g} s"


def bytes_words(value: float) -> str:
    """Return an amount of bytes in decimal units."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def share_words(part: int, whole: int) -> str:
    """Return a share with its counts."""
    return f"{part}/{whole} = {100 * part / whole:.1f} %" if whole else "0/0"


def slo_words(slo: Slo) -> str:
    """Return what the SLO asks for."""
    limits = f"TTFT within {limit_words(slo.ttft_s)}, inter-token gap within {limit_words(slo.itl_s)}"
    return f"{limits}, for {100 * slo.attainment:g} %"


def kv_words(kv: KvFlow) -> tuple[str, str]:
    """Say how much KV moved each way, and what became of the history tokens."""
    there, back = bytes_words(kv.prefill_to_decode_bytes), bytes_words(kv.decode_to_prefill_bytes)
    read, cached = f"{kv.history_read_tokens:,.0f}", f"{kv.history_cached_tokens:,.0f}"
    return (
        f"prefill to decode {there}, decode to prefill {back} (simulated transfers)",
        f"{read} read from decode workers, {cached} cached, {kv.history_recomputed_tokens:,.0f} recomputed",
    )


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One latency, measured and planned (median, the SLO's percentile, mean), in seconds; None where there is none."""

    name: str
    measured: Distribution | None
    planned: tuple[float | None, float | None, float | None] = (None, None, None)


def latency_rows(facts: Facts) -> tuple[LatencyRow, ...]:
    """Return measured latencies with what the plan predicts of them; a plan without simulation has no split."""
    predicted, measured = facts.plan.predicted, facts.summary

    def planned(
        of: LatencyQuantiles | None, *, high: float | None = None, mean: float | None = None
    ) -> tuple[float | None, float | None, float | None]:
        return (None, high, mean) if of is None else (of.p50_s, of.p95_s if high is None else high, mean)

    return (
        LatencyRow("TTFT, first rounds", measured.ttft_first, planned(predicted.ttft_first)),
        LatencyRow("TTFT, later rounds", measured.ttft_later, planned(predicted.ttft_later)),
        LatencyRow(
            "TTFT, all rounds",
            measured.ttft_all,
            planned(predicted.ttft, high=predicted.ttft_p95_s, mean=predicted.ttft_mean_s),
        ),
        LatencyRow("ITL, every gap", measured.itl),
        LatencyRow(
            "ITL, mean of a round",
            measured.itl_rounds,
            planned(predicted.itl, high=predicted.itl_p95_s, mean=predicted.itl_mean_s),
        ),
    )


def planned_share(facts: Facts, reading: Reading) -> float | None:
    """Return the attainment that the plan predicts under a reading; None where it simulated nothing."""
    return facts.plan.predicted.readings.get(reading.name)


def shown_readings(facts: Facts) -> tuple[Attained, ...]:
    """Return the attainment under every reading that the machine does not decide; see ``hidden_reading``."""
    return tuple(a for a in facts.summary.attained if not (a.reading.itl == "max" and hidden_reading(facts)))


def hidden_reading(facts: Facts) -> str:
    """Return why the largest gap of a session or round is not shown, "" where it is.

    One late step is enough to miss it. Where mock engines or the client were late by more than the plan leaves between
    its ITL and the SLO, a busy CPU decided it.
    """
    if facts.pace is None:
        return ""
    late, room = facts.pace.worst_step_s + facts.load.lag_max_s, facts.slo.itl_s - facts.plan.predicted.itl_p95_s
    if late <= room:
        return ""
    return (
        "The largest gap is left out: this machine's CPU decided it. A step of the mock engines came up to "
        f"{seconds_words(facts.pace.worst_step_s)} late, the load client {seconds_words(facts.load.lag_max_s)}, "
        f"and the plan leaves {seconds_words(max(0.0, room))} to the SLO. The file of the figures has it."
    )


def source_words(facts: Facts) -> str:
    """Say what the plan's figures come from."""
    policy = facts.plan.policy
    if facts.plan.predicted.source != "simulation" or policy is None:
        return "the plan's figures come from its two phases alone, without a simulation"
    mode = f"/{policy.mode}" if policy.mode else ""
    return f"the plan's figures come from simulating policy {policy.route}{mode} on the fitted workload"


def load_findings(load: ClientLoad, pace: EnginePace | None) -> tuple[str, ...]:
    """Say whether the client, the machine or late mock engines got in the way of the measurement."""
    findings = []
    if load.lag_p99_s > LAG_LIMIT_S:
        findings.append(
            f"the load client's event loop was late by {seconds_words(load.lag_p99_s)} at P99: "
            "measured latencies include that delay"
        )
    if load.machine_busy_cores is not None and load.machine_busy_cores > BUSY_SHARE_LIMIT * load.machine_cores:
        findings.append(
            f"the machine was busy with {load.machine_busy_cores:.1f} of {load.machine_cores} cores: "
            "latencies include waiting for a core"
        )
    if pace is not None and pace.lost_s > LOST_LIMIT_S:
        findings.append(
            f"the mock engines fell behind their profile by {seconds_words(pace.lost_s)} in all for want of CPU: "
            "latencies include that"
        )
    return tuple(findings)


def load_words(load: ClientLoad, pace: EnginePace | None) -> tuple[str, ...]:
    """Say how busy client and machine were, and how well the mock engines kept their pace."""
    words = [f"load client {load.cpu_cores:.2f} cores, event loop late by {seconds_words(load.lag_p99_s)} (P99)"]
    if load.machine_busy_cores is not None:
        words.append(f"client's machine {load.machine_busy_cores:.2f} of {load.machine_cores} cores busy")
    if pace is not None:
        words.append(
            f"mock engines behind their profile by {seconds_words(pace.lost_s)} in all, "
            f"latest step {seconds_words(pace.worst_step_s)} late"
        )
    return tuple(words)
