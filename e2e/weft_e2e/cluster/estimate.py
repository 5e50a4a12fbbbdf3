"""How long the rest of a piece of work takes, from how fast it went so far. Pure.

Work is counted in seconds on REFERENCE_CORES idle cores like those that the parts were measured on.
"""

REFERENCE_CORES = 2
# The first figures of a run say little, so what was expected counts like this much work that is done already.
EXPECTATION_S = 90.0
MOST_CORES = 8  # what the builds gain from more is little: some of their largest packages come one after another


def remaining_s(*, total: float, done: float, elapsed_s: float, cores: int) -> float:
    """Return the seconds that the rest takes: at the expected speed first, then ever more at the measured one."""
    expected = min(max(cores, 1), MOST_CORES) / REFERENCE_CORES
    prior = min(EXPECTATION_S, total)
    speed = (done + prior) / (elapsed_s + prior / expected) if total > 0 else expected
    return max(total - done, 0.0) / speed


def duration_words(seconds: float) -> str:
    """Return a duration as a person would say it: in whole minutes, rounded up, or "less than a minute"."""
    if seconds < 50:
        return "less than a minute"
    minutes = max(1, -(-round(seconds) // 60))
    return "about a minute" if minutes == 1 else f"about {minutes} minutes"


def share_words(*, total: float, done: float) -> str:
    """Return how much is done, in percent; 100 % only when nothing is left."""
    if total <= 0 or done >= total:
        return "100 %"
    return f"{min(int(100 * done / total), 99)} %"
