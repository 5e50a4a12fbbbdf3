"""Check from the engines' own counts that no token's KV was computed twice."""

from collections.abc import Mapping, Sequence

from weft_e2e.checks.failed import CheckFailed
from weft_e2e.metrics import growth
from weft_e2e.replay.records import RoundRecord


def check_history_read(before: Mapping[str, str], after: Mapping[str, str], *, remote_later_rounds: int) -> None:
    """Let no remote later round recompute history: the engines count zero, and KV came back from decode workers.

    ``before`` and ``after`` are metrics pages of all routers and engines around the rounds.
    """
    grown = growth(before, after)
    recomputed = grown.total("weft_mock_history_tokens_total", source="recomputed")
    if recomputed:
        raise CheckFailed(f"the engines recomputed {recomputed:.0f} history tokens; remote rounds must read them")
    read = grown.total("weft_mock_history_tokens_total", source="decode_to_prefill")
    if remote_later_rounds and not read:
        raise CheckFailed(
            f"{remote_later_rounds} later rounds ran remotely, but no history was read from decode workers"
        )
    wrong = grown.total("weft_mock_kv_protocol_errors_total") + grown.total("weft_mock_refused_handles_total")
    if wrong:
        raise CheckFailed(f"the engines refused {wrong:.0f} KV transfers")


def check_tokens_computed_once(
    before: Mapping[str, str], after: Mapping[str, str], records: Sequence[RoundRecord], *, block_tokens: int = 16
) -> None:
    """Let the engines compute no more prompt tokens than the rounds added, but for the rounding to whole blocks.

    Each hand-over may compute up to one block again on each side (KV moves in whole blocks), and the chat template
    adds a few tokens per message.
    """
    computed = growth(before, after).total("weft_mock_prefilled_tokens_total")
    added = sum(r.added_tokens for r in records)
    allowed = added + len(records) * 4 * block_tokens
    if computed > allowed:
        raise CheckFailed(
            f"the engines computed {computed:.0f} prompt tokens for {len(records)} rounds that added {added}; "
            f"more than {allowed} means that history was computed again"
        )
