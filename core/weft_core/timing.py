"""T_pre, T_dec, the mixed step, T_kv, T_load over flat sequences of figures, in the subset of Python numba compiles.

The live router calls these functions as they are, with tuples; the simulator compiles the very same ones and calls
them with arrays. A degree's costs are two flat sequences, ``PREFILL_FIELDS`` figures per prefill regime and
``STEP_FIELDS`` per regime of an engine step; the predicted time is the largest regime (AMPD section 3). All times are
seconds, all lengths tokens.
"""

import math
from typing import Final

PREFILL_FIELDS: Final = 7
"""alpha, per_token, per_pair, per_context_token, experts_seconds, log_unread, from_context."""
STEP_FIELDS: Final = 10
"""alpha, per_sequence, per_context_token, experts_seconds, log_unread, per_chunk_token, per_chunk_pair,
per_chunk_context, from_batch, per_chunk.

``log_unread`` is the logarithm of the share of the experts that a token does not read: an exponential takes less than
half as long as a power."""


def prefill_seconds(pieces: tuple[float, ...], history: float, increment: float) -> float:
    """Return T_pre: prefilling ``increment`` tokens alone, after ``history`` cached ones.

    A mixture of experts reads 1 - (1 - share)^increment of its experts.
    """
    return prefill_step_seconds(pieces, increment, increment * (history + increment / 2), history + increment)


def prefill_step_seconds(pieces: tuple[float, ...], tokens: float, pairs: float, context: float) -> float:
    """Return T_pre of several prompts, or parts of them, in one step without decodes, from sums over them.

    ``tokens`` are computed in all. ``pairs`` sums each part's tokens times the mean length of its sequence meanwhile,
    ``context`` what the sequences hold at the end. A regime applies where these are ``from_context`` and more.
    """
    longest = 0.0
    for at in range(0, len(pieces), PREFILL_FIELDS):
        if context < pieces[at + 6]:
            continue
        seconds = pieces[at] + pieces[at + 1] * tokens + pieces[at + 2] * pairs + pieces[at + 3] * context
        if pieces[at + 4] > 0:
            seconds += pieces[at + 4] * (1.0 - math.exp(pieces[at + 5] * tokens))
        if seconds > longest:
            longest = seconds
    return longest


def step_seconds(
    pieces: tuple[float, ...], batch: float, context: float, chunk: float = 0.0, chunk_history: float = 0.0
) -> float:
    """Return one engine step: ``batch`` sequences of ``context`` tokens in total decode one token each.

    ``chunk`` prefill tokens after ``chunk_history`` cached ones ride along; without them this is T_dec. A mixture of
    experts reads 1 - (1 - share)^tokens of its experts. A regime applies to batches of ``from_batch`` and more.
    """
    pairs = chunk * (chunk_history + chunk / 2)
    held = chunk_history + chunk if chunk > 0 else 0.0
    longest = 0.0
    log_unread = 1.0
    read = 0.0
    for at in range(0, len(pieces), STEP_FIELDS):
        if batch < pieces[at + 8]:
            continue
        seconds = (
            pieces[at]
            + pieces[at + 1] * batch
            + pieces[at + 2] * context
            + pieces[at + 5] * chunk
            + pieces[at + 6] * pairs
            + pieces[at + 7] * held
        )
        if pieces[at + 3] > 0:
            if pieces[at + 4] != log_unread:  # regimes mostly have one in common
                log_unread = pieces[at + 4]
                read = 1.0 - math.exp(log_unread * (batch + chunk))
            seconds += pieces[at + 3] * read
        if chunk > 0:
            seconds += pieces[at + 9]
        if seconds > longest:
            longest = seconds
    return longest


def transfer_seconds(alpha: float, per_token: float, tokens: float) -> float:
    """Return T_kv; nothing to move takes no time."""
    return alpha + per_token * tokens if tokens > 0 else 0.0


def load_seconds(latency: float, per_token: float, tokens: float) -> float:
    """Return T_load of a tier below the GPUs' memory; nothing to load takes no time."""
    return latency + per_token * tokens if tokens > 0 else 0.0


def wait_and_load(queue: float, load: float) -> float:
    """Return the wait of a prefill that needs a load from a tier: it is loaded while those before it are computed."""
    return load if load > queue else queue


def place_wait_seconds(places: float, taken: float, running: float, answer: float, step: float) -> float:
    """Return how long one more sequence waits for a place in a batch of ``places``, behind all who have or want one.

    Each of ``running`` sequences ends once in ``answer`` steps of ``step`` seconds. 0 while a place is free, and where
    the length of answers is not known (NaN).
    """
    short = taken + 1.0 - places
    if short <= 0 or running <= 0 or not answer > 0:
        return 0.0
    return short * answer * step / running


def chunk_between(
    pieces: tuple[float, ...], batch: float, context: float, chunk_history: float, limit: float, most: int
) -> tuple[int, int]:
    """Return between which two the largest chunk lies whose mixed step is within ``limit``, by inverting each piece.

    A piece is a parabola in the chunk; the share of experts that a mixed step reads is all of them for the lower end
    and none for the upper one, so a dense model has one figure. Rounding may put either end off by a token.
    """
    low = float(most)
    high = float(most)
    if not limit < math.inf:
        return most, most
    for at in range(0, len(pieces), STEP_FIELDS):
        if batch < pieces[at + 8]:
            continue
        steep = pieces[at + 5] + pieces[at + 6] * chunk_history + pieces[at + 7]
        bend = 2.0 * pieces[at + 6]
        alone = pieces[at] + pieces[at + 1] * batch + pieces[at + 2] * context
        room = limit - (alone + pieces[at + 9] + pieces[at + 7] * chunk_history)
        if room < 0:
            return 0, 0
        slope = steep + math.sqrt(steep * steep + bend * room)
        if slope > 0:
            high = min(high, 2.0 * room / slope)
        if pieces[at + 3] > 0:
            room = max(0.0, room - pieces[at + 3])
            slope = steep + math.sqrt(steep * steep + bend * room)
            low = min(low, 2.0 * room / slope) if slope > 0 else 0.0
    return int(min(low, high)), int(high)


def largest_chunk(
    pieces: tuple[float, ...], batch: float, context: float, chunk_history: float, limit: float, most: int
) -> int:
    """Return the most prefill tokens, up to ``most``, whose mixed step stays within ``limit`` seconds; 0 when none do.

    Bisection between two ends that the inverted pieces give, or between all that is allowed where these are off: a step
    never gets faster by a longer chunk.
    """
    low, high = chunk_between(pieces, batch, context, chunk_history, limit, most)
    if low < 1 or step_seconds(pieces, batch, context, float(low), chunk_history) > limit:
        if step_seconds(pieces, batch, context, 1.0, chunk_history) > limit:
            return 0
        high = max(1, low if low > high else high)
        low = 1
    high = max(high, low)
    if high < most and step_seconds(pieces, batch, context, float(high + 1), chunk_history) <= limit:
        high = most
    while low < high:
        middle = (low + high + 1) // 2
        if step_seconds(pieces, batch, context, float(middle), chunk_history) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def chunked_seconds(
    pieces: tuple[float, ...],
    batch: float,
    context: float,
    history: float,
    tokens: float,
    limit: float,
    most: int,
    least: int = 1,
    overhead: float = 0.0,
) -> float:
    """Return the seconds of prefilling ``tokens`` after ``history`` cached ones in chunks beside a decoding batch.

    The chunks are the longest, up to ``most``, that keep every step within ``limit`` seconds, but no shorter than
    ``least``; infinite when not even one token keeps it. Each chunk but the last costs ``overhead`` seconds more. The
    batch is taken as it is now, and all chunks at the mean of what their sequence will hold.
    """
    if tokens <= 0:
        return 0.0
    held = history + tokens / 2
    if tokens <= most and tokens == math.floor(tokens):  # the common case: all of it rides along with one step
        seconds = step_seconds(pieces, batch, context, tokens, held)
        if seconds <= limit:
            return seconds
    chunk = largest_chunk(pieces, batch, context, held, limit, most)
    if chunk == 0:
        return math.inf
    chunk = max(chunk, least)
    whole = tokens // chunk
    seconds = 0.0
    if whole > 0:
        seconds = whole * step_seconds(pieces, batch, context, float(chunk), held)
    rest = tokens - whole * chunk
    if rest > 0:
        seconds += step_seconds(pieces, batch, context, rest, held)
        return seconds + overhead * whole
    return seconds + overhead * (whole - 1)


def queue_history(tokens: float, work: float) -> float:
    """Return the cached tokens of the one prefill of ``tokens`` that takes as long as a whole queue of them.

    ``work`` is those tokens, each times what its sequence will hold on average while it is computed.
    """
    return max(0.0, work / tokens - tokens / 2) if tokens > 0 else 0.0


def pause_between_chunks(pieces: tuple[float, ...], batch: float, context: float, overhead: float) -> float:
    """Return the seconds from the end of a chunk to the start of the next, which costs ``overhead`` to send.

    A busy engine runs its next step meanwhile.
    """
    if overhead > 0 and batch > 0:
        return max(overhead, step_seconds(pieces, batch, context))
    return overhead
