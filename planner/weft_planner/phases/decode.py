"""Simulate the decode pool alone: continuous batching on k workers, prefills idealised, KV held by running rounds."""

import numpy as np

from weft_core.cost import DegreeCosts
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import WARM_UP, Sample


def simulate_decode(
    sample: Sample,
    costs: DegreeCosts,
    *,
    prefill_s: Floats,
    pace: float,
    workers: int,
    sequences: int | None = None,
    warm_up: float = WARM_UP,
) -> Floats:
    """Return the mean inter-token gap of every round that begins to decode in the observed window, in seconds.

    A session is bound, at its first round, to the worker with the most KV left, and stays there. Each round holds its
    final context while it decodes, for engines evict what idle sessions hold; without room it waits, and the wait
    counts in that round's gaps, as does the wait for a place in a batch of at most ``sequences``. ``pace`` places the
    sessions that are under way at time 0.
    """
    from weft_planner.simulation.decode_pool import ROUND, run  # numba is loaded when the first phase is simulated

    steps = np.maximum(sample.tokens - 1, 0)
    ready = sample.starts(prefill_s + steps * pace + sample.gap) + prefill_s
    ends = ready + steps * pace
    last = np.append(sample.first_row[1:], sample.rows) - 1
    under_way = (ends[last] > 0) | (ready[last] >= 0)
    rows = np.flatnonzero(under_way[sample.session])  # most sessions of a sample are over by time 0
    rounds = np.zeros(len(rows), ROUND)
    rounds["session"], rounds["tokens"] = sample.session[rows], steps[rows]
    rounds["ready"], rounds["ends"] = ready[rows], ends[rows]
    rounds["context"] = (sample.history + sample.increment + 1)[rows]
    rounds["need"] = (sample.history + sample.increment + sample.tokens)[rows]
    rounds["between"] = (sample.gap + np.append(prefill_s[1:], 0.0))[rows]
    return run(
        rounds,
        np.array(costs.step_figures),
        pace=pace,
        workers=workers,
        capacity=float(costs.kv_capacity_tokens),
        sequences=sample.rows if sequences is None else sequences,
        observed=(warm_up * sample.window, sample.window),
    )
