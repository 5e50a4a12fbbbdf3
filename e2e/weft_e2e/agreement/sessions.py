"""Turn a drawn sample into sessions that the replay client holds, token for token.

A sample's increment counts every token that a round adds to the prompt. The chat template adds some of them, so the
texts are that much shorter.
"""

from dataclasses import replace

import numpy as np

from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_mock.tokenizer import chat_ids
from weft_planner.workload.sessions import Sample

FIRST_FRAMING = len(chat_ids([{"role": "user", "content": ""}]))
"""Tokens that the chat template adds to a first prompt: begin, role, end of turn, and the assistant's role."""
LATER_FRAMING = len(chat_ids([{"role": role, "content": ""} for role in ("user", "assistant", "user")])) - FIRST_FRAMING
"""Tokens that it adds to a later one: the answer's end of turn, role, end of turn, and the assistant's role."""


def fitted(sample: Sample) -> Sample:
    """Return the sample with increments that leave room for the chat template and one word at least."""
    increment = np.maximum(sample.increment, max(FIRST_FRAMING, LATER_FRAMING) + 1)
    held = np.cumsum(increment + sample.tokens)
    first = sample.first_row
    context = held - (held[first] - increment[first] - sample.tokens[first])[sample.session]
    last = np.append(first[1:], sample.rows) - 1
    return replace(sample, increment=increment, history=context - increment - sample.tokens, reserve=context[last])


def sessions_of(
    sample: Sample, framing: tuple[int, int] = (FIRST_FRAMING, LATER_FRAMING)
) -> tuple[PlannedSession, ...]:
    """Return the sessions in order of arrival; the gap after a round is the pause before the next one.

    ``framing`` is what the chat template adds to a first and to a later prompt, of a model that has another one.
    """
    ends = np.append(sample.first_row[1:], sample.rows)
    return tuple(
        PlannedSession(
            name=name_of(number),
            arrival_s=float(sample.arrival[number]),
            rounds=tuple(_planned(sample, row, framing=framing, first=row == start) for row in range(start, end)),
        )
        for number, (start, end) in enumerate(zip(sample.first_row, ends, strict=True))
    )


def name_of(number: int) -> str:
    """Return the name by which a sample's session is replayed."""
    return f"s{number}"


def _planned(sample: Sample, row: int, *, framing: tuple[int, int], first: bool) -> PlannedRound:
    return PlannedRound(
        added_tokens=int(sample.increment[row]) - framing[0 if first else 1],
        decode_tokens=int(sample.tokens[row]),
        gap_s=0.0 if first else float(sample.gap[row - 1]),
    )
