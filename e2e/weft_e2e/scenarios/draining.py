"""Scale-ins under load as data: what goes, how it is told, how often, and what is checked; run on a loopback stack."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from weft_core.profile_json import profile_from_json
from weft_e2e.checks import check_no_failures
from weft_e2e.checks.drains import check_drained, check_ends_early, check_no_lost_sessions, check_sessions_moved
from weft_e2e.leaving import Gone, Hook, Victims, end, victim
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.background import Background, background_sessions
from weft_e2e.stack import Stack, StackConfig, StackWorker, running
from weft_e2e.waiting import until

Says = Callable[[str], None]

STEP_S = 0.8
"""A decode step: slow, so that 200 streams are few tokens a second and the machine is not what is measured."""
LONG = (PlannedRound(1500, 10, 0.0), *(PlannedRound(200, 8, 0.6) for _ in range(30)))
"""A session whose KV is worth something: it grows, and goes on for minutes."""
SHORT = (PlannedRound(150, 8, 0.2), PlannedRound(60, 8, 0.4), PlannedRound(40, 6, 0.4))
MIX = (LONG, SHORT, SHORT, SHORT)
KNOWN_S = 60.0


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Event: a worker goes, and another one takes its place.

    ``named`` goes without being chosen, as when its node is drained; ``within_s`` is the time of a hook that sleeps,
    or when a drain is cut short. With ``rested`` every worker is back first, and then each stream has so many rounds
    on average.
    """

    role: str = "decode"
    victims: Victims = "value"
    hook: Hook = "session"
    within_s: float | None = None
    named: str = ""
    rested: float = 0.0


@dataclass(frozen=True, slots=True)
class DrainResults:
    """What was seen over all events; tokens are prompt tokens."""

    records: tuple[RoundRecord, ...]
    transcripts: tuple[SessionTranscript, ...]
    gone: tuple[Gone, ...]
    computed_tokens: int
    needed_tokens: int
    """What had to be computed once: prompts without what their session's last round left."""
    live: tuple[int, ...]
    """Live rounds of the whole service when each worker went."""

    @property
    def recomputed_tokens(self) -> int:
        """Return the tokens computed more than once; hand-overs in whole blocks count, too."""
        return self.computed_tokens - self.needed_tokens


Check = Callable[[DrainResults, "DrainScenario"], None]


@dataclass(frozen=True, slots=True)
class DrainScenario:
    """Streams that never pause for long, workers, what happens, and what must be so afterwards."""

    name: str
    events: Sequence[ScaleIn]
    checks: Sequence[Check]
    streams: int = 200
    prefill: int = 2
    decode: int = 5
    drain_s: float = 14.0
    step_s: float = STEP_S
    warm_rounds: float = 1.2
    """Rounds that each stream has on average before the first event."""


def run(scenario: DrainScenario, folder: Path, say: Says = lambda _: None) -> DrainResults:
    """Carry out all events under load, apply all checks and return what was seen.

    Raises:
        CheckFailed: a check says what was expected and what was found.
    """
    workers = [StackWorker(f"p-{k}", "prefill", 1) for k in range(scenario.prefill)]
    workers += [StackWorker(f"d-{k}", "decode", 1) for k in range(scenario.decode)]
    config = StackConfig(
        profile=profile_from_json(costs(scenario.step_s)), workers=tuple(workers), policy="remote-jsq",
        drain_s=scenario.drain_s, handle_ttl_s=40.0, kv_lease_s=10.0, ttft_s=5.0, itl_s=2 * scenario.step_s,
    )  # fmt: skip
    with running(config, folder) as stack, ThreadPoolExecutor(1) as starter:
        load = Background(stack.target, lanes=scenario.streams, rounds=MIX[0], others=MIX[1:], round_deadline_s=90.0)
        gone: list[Gone] = []
        live: list[int] = []
        with background_sessions(load):
            load.wait_served(int(scenario.warm_rounds * scenario.streams), timeout_s=180.0)
            coming: Future[None] | None = None
            for event in scenario.events:
                if (event.named or event.rested) and coming is not None:
                    coming.result(KNOWN_S)  # it may be the one that is named
                if event.rested:
                    load.wait_served(int(event.rested * scenario.streams), timeout_s=120.0)
                busy = frozenset({gone[-1].worker}) if coming is not None and not coming.done() else frozenset[str]()
                name = _next(stack, event, busy)
                live.append(sum(record.live_rounds for record in stack.records() if record.role == "decode"))
                went = end(stack, name, event.hook, within_s=event.within_s)
                gone.append(went)
                if coming is not None:
                    coming.result(KNOWN_S)
                coming = starter.submit(_start, stack, name)
                say(f"{len(gone):3d} {name} went in {went.seconds:.1f} s, {live[-1]} live; {_words(went)}")
            if coming is not None:
                coming.result(KNOWN_S)
        computed = sum(one.computed_tokens for one in gone)
        computed += sum(int(str(stack.ledger(worker.name)["prefilled_tokens"])) for worker in config.workers)
    needed = sum(_needed(transcript.records) for transcript in load.transcripts)
    seen = DrainResults(tuple(load.records), tuple(load.transcripts), tuple(gone), computed, needed, tuple(live))
    for check in scenario.checks:
        check(seen, scenario)
    return seen


def costs(step_s: float) -> dict[str, object]:
    """Return a profile of brief prefills and briefer transfers, and of decode steps that take as long as told."""
    return {
        "model": "weft/steady",
        "gpu": "none",
        "engine": "mock",
        "kvBytesPerToken": 1000,
        "degrees": [
            {
                "degree": 1,
                "weightBytesPerGpu": 1,
                "kvCapacityTokens": 400_000,
                "prefill": [{"alpha": 0.002, "perToken": 1e-5, "perPair": 0.0, "perContextToken": 0.0}],
                "decode": [{"alpha": step_s, "perSequence": 0.0, "perContextToken": 0.0}],
            }
        ],
        "transfers": [{"source": 1, "destination": 1, "link": "inter-node", "alpha": 0.001, "perToken": 1e-6}],
        "provenance": {},
    }


def no_failures(seen: DrainResults, _: DrainScenario) -> None:
    """Check that every request was answered whole."""
    check_no_failures(seen.records)


def no_lost_sessions(seen: DrainResults, _: DrainScenario) -> None:
    """Check that every session went on with its own words."""
    check_no_lost_sessions(seen.transcripts)


def drained(seen: DrainResults, scenario: DrainScenario) -> None:
    """Check that every worker drained by session and within its time."""
    check_drained(seen.gone, drain_s=scenario.drain_s)


def ends_early(seen: DrainResults, scenario: DrainScenario) -> None:
    """Check that drains end when nothing is left."""
    check_ends_early(seen.gone, drain_s=scenario.drain_s)


def moved(seen: DrainResults, _: DrainScenario) -> None:
    """Check that sessions took their KV along: one in every five scale-ins at least, for victims have few."""
    check_sessions_moved(seen.gone, least=max(1, len(seen.gone) // 5))


CHECKS: tuple[Check, ...] = (no_failures, no_lost_sessions, drained, ends_early, moved)


def scale_ins(count: int, *, victims: Victims = "value", hook: Hook = "session") -> tuple[ScaleIn, ...]:
    """Return so many scale-ins, every fifth of a prefill worker."""
    return tuple(ScaleIn("prefill" if k % 5 == 4 else "decode", victims, hook) for k in range(count))


def _next(stack: Stack, event: ScaleIn, busy: frozenset[str]) -> str:
    """Return who goes next, once enough others of its role are there."""

    def ready() -> bool:
        there = [r for r in stack.records() if r.role == event.role and r.ready and not r.draining]
        return len([r for r in there if r.worker not in busy]) >= 2 and event.named not in busy

    until(ready, what=f"two {event.role} workers", timeout_s=KNOWN_S, every_s=0.1)
    return event.named or victim(stack, event.role, event.victims, busy=busy)


def _start(stack: Stack, worker: str) -> None:
    stack.restart(f"{worker}/engine")
    stack.restart(f"{worker}/router")


def _needed(records: Sequence[RoundRecord]) -> int:
    """Return the prompt tokens of a session's rounds that no earlier one had KV of: the last of an answer has none."""
    held = needed = 0
    for record in records:
        prompt, answer = record.prompt_tokens or 0, record.completion_tokens or 0
        needed += max(0, prompt - held)
        held = prompt + max(0, answer - 1)
    return needed


def _words(went: Gone) -> str:
    drain = went.drain
    if not drain:
        return "it said nothing"
    return (
        f"moved {drain['moved_by_handle']} by handle, {drain['moved_by_prefill']} by prefill, "
        f"{drain['forced']} forced, {drain['sessions_left']} sessions left"
    )
