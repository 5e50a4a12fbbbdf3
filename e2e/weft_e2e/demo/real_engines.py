"""The demo with real engines and no GPU: vLLM's CPU build on two nodes, and a conversation by the engines' counters."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from weft_e2e.demo.install import bring_up_local
from weft_e2e.demo.settings import ENGINES_CLUSTER
from weft_e2e.demo.steps import Say, Steps
from weft_e2e.engines import environment
from weft_e2e.engines.counters import Counters, Sources, counters, sources
from weft_e2e.engines.deployed import apply_example, remove_example, wait_ready
from weft_e2e.engines.host_image import host_image
from weft_e2e.replay.client import Deadlines, SessionTranscript, Target, open_http, run_session
from weft_e2e.replay.records import RoundRecord
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.waiting import WaitedTooLong, until

NAMESPACE = "weft-engines"
READY_S = 300.0
COUNTED_S = 10.0
"""Engines count a transfer with a step after it."""
ROUNDS = (PlannedRound(700, 160, 0.0), PlannedRound(180, 160, 1.0), PlannedRound(180, 160, 1.0))
"""Answers longer than a block of 128 tokens leave KV that only the decode engine has."""
TEXT = "Weaving begins with the warp, the set of threads that are held in tension on the loom. "
WORDS = (
    "",
    "Prompt tokens, by vLLM's own counters. History comes from the decode engine or a cache and is not computed again;",
    "proofs of the KV path, 96 tokens each, are counted, too. Weights of the model are random: answers mean nothing.",
    "",
    "What to look at next:",
    f"  - .venv/bin/weft cluster kubectl --name {ENGINES_CLUSTER} -n {NAMESPACE} get dis,pods -o wide",
    "  - docs/engines.md: what was run for real, and how KV paths are proven",
    "  - make demo-down: remove it",
)


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round as the client saw it, and where its prompt's KV came from at the engine of each role."""

    record: RoundRecord
    prompts: dict[str, Sources]


def run(say: Say) -> tuple[str, ...]:
    """Deploy the example on a local cluster of its own and hold a conversation; return what went wrong."""
    steps = Steps(say)
    with steps.step("Set up vLLM's CPU build with NIXL, and a tiny model") as detail:
        env = environment.ensure(detail)
    local = bring_up_local(ENGINES_CLUSTER, steps)
    with steps.step("Build the image that engines run in, and load it") as detail:
        image = host_image(detail)
        local.load([image], detail)
    with steps.step("Apply docs/examples/tiny-vllm-cpu.yaml and wait until it is Ready") as detail:
        remove_example(local, NAMESPACE, wait=True)
        nodes = [node.name for node in local.nodes()]
        service = apply_example(local, env, image=image, nodes=nodes, namespace=NAMESPACE)
        names = wait_ready(service, timeout_s=READY_S)
        detail("; ".join(f"{role}: {name}" for role, name in names.items()))
    with (
        steps.step(f"Ask {len(ROUNDS)} rounds of one conversation, streamed"),
        service.reachable(run=f"{time.time():.0f}-") as target,
        counters(names) as metrics,
    ):
        heard = asyncio.run(talk(target, metrics))
    for line in ("", *table(heard), *WORDS):
        say(line)
    return problems(heard)


async def talk(target: Target, metrics: Counters) -> list[RoundTrace]:
    """Hold the conversation, and read the engines' counters after each of its rounds."""
    heard: list[RoundTrace] = []
    before = metrics.pages()

    def listen(record: RoundRecord) -> None:
        nonlocal before
        heard.append(RoundTrace(record, _counted(metrics, before, record)))
        before = metrics.pages()

    session = PlannedSession("conversation", 0.0, ROUNDS)
    texts = [(TEXT * (1 + planned.added_tokens // len(TEXT)))[: planned.added_tokens] for planned in ROUNDS]
    async with open_http() as http:
        await run_session(
            session, target, http=http, texts=texts, deadlines=Deadlines(), start=time.perf_counter(),
            transcript=SessionTranscript(session.name), on_record=listen,
        )  # fmt: skip
    return heard


def _counted(metrics: Counters, before: dict[str, str], record: RoundRecord) -> dict[str, Sources]:
    """Return what the engines counted of a round, as soon as a hand-over is among it."""
    found: dict[str, Sources] = {}

    def whole() -> bool:
        grown = metrics.grown(before)
        found.update({role: sources(grown, role) for role in ("prefill", "decode")})
        return record.route != "remote" or found["decode"].read > 0

    with contextlib.suppress(WaitedTooLong):  # the table shows that none was counted
        until(whole, what="a hand-over", timeout_s=COUNTED_S, every_s=0.2)
    return found


def table(heard: Sequence[RoundTrace]) -> list[str]:
    """Return a line for each round, under a head."""
    head = (
        "round",
        "prefilled on",
        "prompt",
        "TTFT",
        "ITL",
        "prefill engine: read, cached, computed",
        "decode engine: read",
    )
    rows = [head, *(_row(one) for one in heard)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _row(one: RoundTrace) -> tuple[str, ...]:
    record, prefill, decode = one.record, one.prompts["prefill"], one.prompts["decode"]
    gaps = record.gaps_s
    return (
        str(record.index + 1),
        {"remote": "prefill worker", "local": "decode worker"}.get(record.route or "", record.error or "-"),
        "-" if record.prompt_tokens is None else f"{record.prompt_tokens:,}",
        "-" if record.ttft_s is None else f"{1000 * record.ttft_s:,.0f} ms",
        f"{1000 * sum(gaps) / len(gaps):.1f} ms" if gaps else "-",
        f"{prefill.read:,.0f}, {prefill.cached:,.0f}, {prefill.computed:,.0f}",
        f"{decode.read:,.0f}",
    )


def problems(heard: Sequence[RoundTrace]) -> tuple[str, ...]:
    """Return what should not be: rounds that failed, and later ones that read no history."""
    found = [f"round {one.record.index + 1}: {one.record.error}" for one in heard if not one.record.ok]
    found += [
        f"round {one.record.index + 1} was prefilled on the prefill worker, which read no history"
        for one in heard
        if one.record.ok and one.record.index and one.record.route == "remote" and not one.prompts["prefill"].read
    ]
    return tuple(found)
