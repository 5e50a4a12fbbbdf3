"""Small samples, layouts and cost profiles that the simulator's tests share."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft_core.cost import LINKS, CostProfile, DecodePiece, DegreeCosts, Link, PrefillPiece, TransferCost
from weft_core.parallelism import Degree, batches_of
from weft_planner.simulation import SloClass
from weft_planner.workload.distributions import Floats
from weft_planner.workload.sessions import Sample

TRANSFER = TransferCost(0.004, 2e-6)
Rounds = Sequence[tuple[float, float, float]]
"""(increment, tokens, gap) of each round."""


def sample_of(
    sessions: Sequence[tuple[float, Rounds]],
    *,
    kinds: Sequence[int] = (),
    prefixes: Sequence[float] = (),
    window: float | None = None,
) -> Sample:
    """Return a sample of these sessions: (arrival, rounds), in order of arrival."""
    rows = [len(rounds) for _, rounds in sessions]
    first = np.cumsum(rows) - rows
    owner = np.repeat(np.arange(len(sessions)), rows)
    increment, tokens, gap = (np.array([r[k] for _, rounds in sessions for r in rounds], float) for k in range(3))
    context = np.cumsum(increment + tokens)
    before = context[first] - (increment + tokens)[first]
    context -= before[owner]
    arrival = np.array([a for a, _ in sessions], float)
    last = np.append(first[1:], len(owner)) - 1
    return Sample(
        rate=1.0,
        window=window if window is not None else float(arrival[-1]) + 1.0,
        arrival=arrival,
        first_row=first.astype(np.int64),
        session=owner.astype(np.int64),
        history=context - increment - tokens,
        increment=increment,
        tokens=tokens,
        gap=gap,
        reserve=context[last],
        dropped=0.0,
        past=0.0,
        short_past=False,
        session_class=np.array(kinds or [0] * len(sessions), np.int64),
        prefix=np.array(prefixes or [0.0] * len(sessions), float),
    )


def lifetimes(sample: Sample, round_seconds: Floats) -> Floats:
    """Return how long each session lives when its rounds, gaps included, take these times."""
    return np.add.reduceat(round_seconds, sample.first_row)


DECODE = (
    DecodePiece(0.012, 0.0002, 1e-7, 0.0, 0.0, 0.0003, 1e-8, 1e-7),
    DecodePiece(0.015, 0.0001, 2e-7, 0.004, 0.2, 0.0001, 0.0, 2e-7),
)


def profile(
    *,
    prefill: Sequence[PrefillPiece] = (PrefillPiece(0.02, 0.0003, 1e-8, 0.0), PrefillPiece(0.03, 0.0, 0.0, 1e-6)),
    decode: Sequence[DecodePiece] = DECODE,
    kv: int = 100_000,
    transfer: TransferCost = TRANSFER,
    degrees: Sequence[int] = (1, 2),
) -> CostProfile:
    """Return a made-up profile; degree n is n times as fast at everything but the fixed parts."""
    costs: dict[Degree, DegreeCosts] = {
        n: DegreeCosts(
            prefill=tuple(
                PrefillPiece(p.alpha, p.per_token / n, p.per_pair / n, p.per_context_token / n) for p in prefill
            ),
            decode=tuple(decode),
            weight_bytes_per_gpu=1,
            kv_capacity_tokens=kv * n,
        )
        for n in degrees
    }
    transfers: dict[tuple[Degree, Degree, Link], TransferCost] = {
        (a, b, link): transfer for a in degrees for b in degrees for link in LINKS
    }
    return CostProfile("toy", "toy-gpu", "toy", 1000, costs, transfers)


def with_degrees(profile: CostProfile, *degrees: Degree) -> CostProfile:
    """Return a profile with further degrees: a batch takes as long as one of degree 1, with the memory of one each."""
    one = profile.degrees[1]
    costs = {
        n: profile.degrees.get(n) or replace(one, kv_capacity_tokens=one.kv_capacity_tokens * batches_of(n))
        for n in degrees
    }
    cost = next(iter(profile.transfers.values()))
    ends = {**profile.degrees, **costs}
    return replace(
        profile,
        degrees=ends,
        transfers={**{(a, b, link): cost for a in ends for b in ends for link in LINKS}, **profile.transfers},
    )


ONE_CLASS = (SloClass(1.0, 0.05),)
TWO_CLASSES = (SloClass(1.0, 0.05), SloClass(0.4, 0.03, "urgent", 1))
