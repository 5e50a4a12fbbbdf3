"""Whether the mock engines kept the pace of their cost profile, from their metrics pages. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from weft_e2e.metrics import growth, parse


@dataclass(frozen=True, slots=True)
class EnginePace:
    """How far mock engines fell behind their profile because the CPU was busy, in seconds."""

    lost_s: float
    worst_step_s: float


def engine_pace(before: Mapping[str, str], after: Mapping[str, str]) -> EnginePace | None:
    """Return the engines' lateness over a replay; None where no mock engine tells."""
    pages = {name: text for name, text in after.items() if name.endswith("/engine")}
    worst = [v for text in pages.values() for (n, _), v in parse(text).samples.items() if n == _WORST]
    if not worst:
        return None
    grown = growth({n: t for n, t in before.items() if n in pages}, pages)
    return EnginePace(lost_s=grown.total("weft_mock_lost_seconds_total"), worst_step_s=max(worst))


def transfer_problems(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Say which KV transfers the engines refused or gave up."""
    grown = growth(before, after)
    problems = []
    for name, words in (
        ("weft_mock_kv_protocol_errors_total", "KV transfers had wrong parameters"),
        ("weft_mock_refused_handles_total", "KV reads were refused by their holder"),
        ("weft_mock_failed_reads_total", "KV reads were given up by their reader"),
    ):
        count = grown.total(name)
        if count:
            problems.append(f"{count:.0f} {words}")
    return tuple(problems)


_WORST = "weft_mock_worst_lateness_seconds"
