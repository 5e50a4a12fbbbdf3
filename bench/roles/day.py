"""A day in which long prompts and long answers take turns, who lives through it, and how it is judged. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from weft_core.slo import RoundLatency, Slo, session_met
from weft_e2e.kube import Object
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.arriving import Traffic
from weft_e2e.scenarios.replan_scenarios import drifting_service

TTFT_S, ITL_S = 16.0, 0.054
"""A decode step of all sequences takes 43 ms: the gap leaves decode workers little time to prefill in."""
GPUS = 4
ERROR_CHARS = 120
"""Of an error that are kept."""
SEQUENCES = 8
"""That an engine decodes at once."""
COMPUTE, MEMORY = 0.05, 0.1
"""Shares of an H20's peak that engines reach: so slow that streams of all workers take little of two cores."""
PROMPTS = Traffic(0.34, (PlannedRound(2400, 30, 0.0), PlannedRound(400, 30, 0.3), PlannedRound(400, 30, 0.3)))
ANSWERS = Traffic(0.74, (PlannedRound(200, 200, 0.0), PlannedRound(100, 200, 0.3), PlannedRound(100, 200, 0.3)))
"""Each is some 80 % of what the best layout for it carries, so that what piles up before a change can be caught up."""
PHASES = (("prompts", PROMPTS), ("answers", ANSWERS), ("prompts", PROMPTS), ("answers", ANSWERS))

SWITCHES, RESTARTS, FIXED = "role switches", "restarts", "fixed"
CONTENDERS = {
    SWITCHES: "the operator changes roles of the workers that run",
    RESTARTS: "workers have a fixed role: the operator drains some and starts others on their GPUs",
    FIXED: "the planner's layout for the mean of the day; on full nodes an autoscaler can add nothing to it",
}


@dataclass(frozen=True, slots=True)
class Session:
    """A session as its client saw it: the phase in which it came, and whether it met the SLO.

    ``sent_s`` is when its first round was sent, in seconds since the start; ``ttft_s`` the longest of its rounds that
    were answered, ``itl_s`` the mean gap; ``error`` says why a session failed.
    """

    phase: int
    met: bool
    failed: bool
    answered: int
    """Tokens of its answers."""
    sent_s: float = 0.0
    ttft_s: float = 0.0
    itl_s: float = 0.0
    error: str = ""

    @property
    def late(self) -> bool:
        """Return whether a first token came after its threshold."""
        return self.ttft_s > TTFT_S

    @property
    def stalled(self) -> bool:
        """Return whether the mean gap is above its threshold."""
        return self.itl_s > ITL_S


@dataclass(frozen=True, slots=True)
class Day:
    """What became of one contender."""

    contender: str
    layouts: tuple[str, ...]
    """At the end of each phase."""
    sessions: tuple[Session, ...]
    phase_s: float
    pods: int
    """Worker pods that were started after the first sessions."""
    changes: tuple[tuple[float, str], ...] = ()
    """Seconds after the first sessions, and the plan that the service had since then."""
    busy: float = 0.0
    """Share of the machine's CPU time that was used, mock engines, cluster and clients together."""

    @property
    def attainment(self) -> float:
        """Return the share of sessions within the SLO."""
        return sum(one.met for one in self.sessions) / len(self.sessions)

    @property
    def goodput(self) -> float:
        """Return the sessions per second that met the SLO, over the whole day."""
        return sum(one.met for one in self.sessions) / (self.phase_s * len(PHASES))

    def of_phase(self, phase: int) -> float:
        """Return the share of a phase's sessions within the SLO."""
        mine = [one.met for one in self.sessions if one.phase == phase]
        return sum(mine) / len(mine) if mine else 0.0


def manifest(contender: str, *, start_s: int, image: str) -> Object:
    """Return a contender's service on four full GPUs.

    Engines start ``start_s`` seconds later than mock engines do: an init container of this image, the mock engine's,
    waits for so long, as one would read weights.
    """
    at = mean_traffic() if contender == FIXED else PROMPTS
    first, later = at.rounds[:2]
    made = drifting_service("Off" if contender == FIXED else "Auto", rate=at.sessions_per_s, first_prompt=1.0)
    made["metadata"]["name"] = contender.replace(" ", "-")
    spec = made["spec"]
    spec["workload"] |= {
        "firstPrompt": {"mean": first.added_tokens},
        "increment": {"mean": later.added_tokens},
        "decode": {"mean": first.decode_tokens},
    }
    spec["engine"]["maxNumSeqs"] = SEQUENCES
    spec["slo"] = {"ttft": f"{TTFT_S:g}s", "itl": f"{1e3 * ITL_S:g}ms"}
    spec["profile"] = {"analytic": {"compute": COMPUTE, "memory": MEMORY}}
    spec["capacity"]["pools"][0]["degrees"] = [1]
    spec["planning"] |= {"objective": "latency"}
    for role in ("prefill", "decode"):
        del spec["planning"][role]
    waits = ["/opt/weft/bin/python", "-c", f"import time; time.sleep({start_s})"]
    start = {"name": "slow-start", "image": image, "command": waits}
    patch = {"spec": {"initContainers": [start]}}
    # A template for one role only makes the roles of workers fixed.
    components: tuple[Object, ...] = ({"component": "prefill"}, {"component": "decode"})
    spec["podTemplates"] = [{**one, "patch": patch} for one in (components if contender == RESTARTS else ({},))]
    return made


def mean_traffic() -> Traffic:
    """Return the traffic that the day has on average."""
    prompts, answers = PROMPTS, ANSWERS
    rate = (prompts.sessions_per_s + answers.sessions_per_s) / 2
    share = prompts.sessions_per_s / (2 * rate)

    def mean(one: int, other: int) -> int:
        return round(share * one + (1 - share) * other)

    rounds = tuple(
        PlannedRound(mean(a.added_tokens, b.added_tokens), mean(a.decode_tokens, b.decode_tokens), a.gap_s)
        for a, b in zip(prompts.rounds, answers.rounds, strict=True)
    )
    return Traffic(rate, rounds)


def judge(transcripts: Sequence[SessionTranscript], phases: Sequence[int]) -> tuple[Session, ...]:
    """Judge sessions by their transcripts; ``phases`` says in which phase each of them came."""
    slo = Slo(TTFT_S, ITL_S)
    found = []
    for transcript, phase in zip(transcripts, phases, strict=True):
        records = transcript.records
        whole = len(records) == len(PHASES[phase][1].rounds) and all(one.ok for one in records)
        rounds = [RoundLatency(one.ttft_s or 0.0, one.gaps_s) for one in records]
        gaps = [gap for one in records for gap in one.gaps_s]
        errors = [one.error or f"{one.outcome}, status {one.status}" for one in records if not one.ok]
        found.append(
            Session(
                phase=phase,
                met=whole and session_met(rounds, slo),
                failed=bool(errors),
                answered=sum(one.completion_tokens or 0 for one in records),
                sent_s=records[0].sent_s if records else 0.0,
                ttft_s=max((one.ttft_s or 0.0 for one in records), default=0.0),
                itl_s=sum(gaps) / len(gaps) if gaps else 0.0,
                error=errors[0][:ERROR_CHARS] if errors else "",
            )
        )
    return tuple(found)
