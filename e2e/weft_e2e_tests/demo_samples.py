"""Made-up measurements for the tests of the table, the report and the figures (no claim about any machine)."""

import random
from dataclasses import replace

from weft_core.plan import Plan, PlannedGroup, Prediction
from weft_core.slo import Slo
from weft_e2e.demo.engines import EnginePace
from weft_e2e.demo.facts import DemoStep, Facts
from weft_e2e.demo.measures import summarise
from weft_e2e.metrics import KvFlow
from weft_e2e.replay.records import ClientLoad, RoundRecord

SLO = Slo(ttft_s=2.0, itl_s=0.04)
LOAD = ClientLoad(cpu_cores=0.2, machine_busy_cores=0.9, machine_cores=2, lag_p99_s=0.002, lag_max_s=0.01)
PLAN = Plan(
    groups=(PlannedGroup("prefill", 4, 2, "h20"), PlannedGroup("decode", 8, 1, "h20")),
    predicted=Prediction(ttft_p95_s=1.1, itl_p95_s=0.021, ttft_mean_s=0.4, itl_mean_s=0.018, gpus=16, slo_met=True),
    objective="latency",
    inputs_hash="abc",
    revision="0123456789",
    reason="smallest worst latency as a share of its SLO",
)


def a_round(session: str = "s", index: int = 0, **changes: object) -> RoundRecord:
    """Return a round that went well, with the named fields changed."""
    record = RoundRecord(
        session=session,
        index=index,
        phase="first" if index == 0 else "later",
        added_tokens=100,
        decode_tokens=3,
        sent_s=float(index),
        total_s=0.5,
        outcome="ok",
        status=200,
        ttft_s=0.2,
        gaps_s=(0.02, 0.02),
        prompt_tokens=110,
        cached_tokens=0,
        completion_tokens=3,
        finish_reason="length",
        route="remote",
        worker="d",
        reason="ttft-within-slack",
    )
    return replace(record, **changes)  # type: ignore[arg-type]  # test data by field name


def many_rounds(sessions: int = 30, *, seed: int = 3) -> tuple[RoundRecord, ...]:
    """Return a believable replay."""
    rng = random.Random(seed)
    records = []
    for s in range(sessions):
        at = rng.uniform(0, 50)
        for k in range(rng.randint(3, 6)):
            added = int(rng.lognormvariate(6, 1.2)) + 1
            ttft = 0.08 + added * 2.6e-4 * rng.uniform(0.9, 2.2)
            tokens = rng.randint(120, 384)
            gaps = tuple(rng.gauss(0.019, 0.0015) + (0.15 if rng.random() < 0.003 else 0) for _ in range(tokens - 1))
            total = ttft + sum(gaps)
            route = "local" if added < 80 and k else "remote"
            records.append(
                a_round(
                    f"gaia-{s:03}",
                    k,
                    added_tokens=added,
                    decode_tokens=tokens,
                    completion_tokens=tokens,
                    sent_s=at,
                    total_s=total,
                    ttft_s=ttft,
                    gaps_s=gaps,
                    route=route,
                )
            )
            at += total + rng.uniform(0.2, 3)
    return tuple(sorted(records, key=lambda r: r.sent_s))


def facts(records: tuple[RoundRecord, ...] | None = None, **changes: object) -> Facts:
    """Return a finished demo over the records."""
    records = many_rounds() if records is None else records
    made = Facts(
        service="llama-3-1-70b",
        model="meta-llama/Llama-3.1-70B-Instruct",
        gpu="16 x NVIDIA H20 (simulated)",
        cluster="local cluster 'weft', Kubernetes v1.35.0, 2 nodes",
        version="0.1.0",
        started_at="2026-01-02T03:04:05+00:00",
        slo=SLO,
        plan=PLAN,
        summary=summarise(records, SLO),
        records=records,
        kv=KvFlow(41.2e9, 23.9e9, 143_200, 51_000, 0),
        load=LOAD,
        pace=EnginePace(lost_s=0.0, worst_step_s=0.004),
        choices=("31 of 44 sessions of gaia_whowhen", "pauses between rounds were scaled by 0.2"),
        simulated=(
            "GPUs: the nodes claim 8 each, none is there",
            "the engine: it follows the cost profile in real time",
        ),
        steps=(DemoStep("Start the cluster", 6.1), DemoStep("Install Weft with Helm", 14.2), DemoStep("Replay", 88.0)),
        next_steps=("`weft demo --trace claude_code` replays long coding sessions", "remove all with `make demo-down`"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # test data by field name
