"""Choose the next token as a pure function of every token in the context.

A context is folded into one number, its *state*, which stands for the KV cache: each KV block
keeps the state at its end, so a block that was computed from other tokens continues with other
answers. Folding reads the context as one large number in base 2^32 modulo a prime, which Python
does at C speed, block by block, and which composes: state(a + b) follows from state(a) and b.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weft_mock.tokenizer import ASSISTANT, END_OF_TURN, SPACE_OFFSET, WORDS, id_bytes

# The largest prime below 2^63: states stay within JSON's 64-bit integers.
_PRIME = 2**63 - 25
START = 0x5DEECE66D
"""State of the empty context."""

_MASK = 2**64 - 1
_WORDS = len(WORDS)
# Answers end by themselves after 16 to 64 tokens, the end-of-turn token included.
_SHORTEST, _LONGEST = 16, 64


def fold(state: int, ids: Sequence[int]) -> int:
    """Return the state after ``ids`` follow a context of this state."""
    data = id_bytes(ids)
    return ((state << (8 * len(data))) + int.from_bytes(data, "big")) % _PRIME


def block_states(ids: Sequence[int], block_size: int) -> list[int]:
    """Return the state at the end of every full block: the chained block hashes of the prefix cache."""
    data = id_bytes(ids)
    width = 4 * block_size
    bits = 8 * width
    states: list[int] = []
    state = START
    for at in range(0, len(ids) // block_size * width, width):
        state = ((state << bits) + int.from_bytes(data[at : at + width], "big")) % _PRIME
        states.append(state)
    return states


def _mix(value: int) -> int:
    value = (value * 0x9E3779B97F4A7C15) & _MASK
    value ^= value >> 29
    value = (value * 0xBF58476D1CE4E5B9) & _MASK
    return value ^ (value >> 32)


def answer_start(ids: Sequence[int]) -> int | None:
    """Return the position after the last assistant header when the context stands inside an answer."""
    for at in range(len(ids) - 1, -1, -1):
        if ids[at] == ASSISTANT:
            return at + 1
        if ids[at] == END_OF_TURN:
            return None
    return None


def natural_length(state: int) -> int:
    """Return after how many tokens an answer ends by itself, from the state at its start."""
    return _SHORTEST + _mix(state ^ 0x5BD1E995) % (_LONGEST - _SHORTEST + 1)


@dataclass(slots=True)
class Generator:
    """Continue one context token by token.

    ``said`` counts the tokens since the assistant header; ``length`` is where the answer ends by
    itself (None: never, as for a plain prompt); ``variant`` tells apart the ``n`` answers to one prompt. A ``sampled``
    answer depends on where this generator began, too: continued by another one it goes on otherwise.
    """

    state: int
    said: int
    length: int | None
    variant: int = 0
    sampled: bool = False
    made: int = 0

    def next(self, *, may_end: bool) -> int:
        """Return the next token and take it into the context."""
        if may_end and self.length is not None and self.said + 1 >= self.length:
            token = END_OF_TURN
        else:
            chance = self.variant + (self.made << 40 if self.sampled else 0)
            word = WORDS[_mix(self.state + chance) % _WORDS]
            token = word if self.said == 0 else word + SPACE_OFFSET
        self.state = ((self.state << 32) + token) % _PRIME
        self.said += 1
        self.made += 1
        return token


def generator(ids: Sequence[int], *, held: int, held_state: int, variant: int = 0, sampled: bool = False) -> Generator:
    """Return the generator of a context whose first ``held`` tokens have the state ``held_state``.

    The held part is taken as it is in the KV blocks; only the tokens after it are folded in.
    """
    start = answer_start(ids)
    if start is None:
        state = fold(held_state, ids[held:])
        return Generator(state, said=max(1, len(ids)), length=None, variant=variant, sampled=sampled)
    if start >= held:
        at_start = fold(held_state, ids[held:start])
        state = fold(at_start, ids[start:])
    else:
        # The answer began inside the held part: its length follows from the ids, the state from the blocks.
        at_start = fold(START, ids[:start])
        state = fold(held_state, ids[held:])
    length = natural_length(at_start)
    return Generator(state, said=len(ids) - start, length=length, variant=variant, sampled=sampled)


def answer(
    prompt_ids: Sequence[int],
    n: int,
    *,
    ignore_eos: bool = False,
    min_tokens: int = 0,
    variant: int = 0,
    sampled: bool = False,
) -> list[int]:
    """Return what an engine must answer to a prompt with ``max_tokens = n``, the end-of-turn token included."""
    words = generator(prompt_ids, held=0, held_state=START, variant=variant, sampled=sampled)
    out: list[int] = []
    while len(out) < n:
        token = words.next(may_end=not ignore_eos and len(out) >= min_tokens)
        out.append(token)
        if token == END_OF_TURN:
            break
    return out
