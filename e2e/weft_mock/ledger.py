"""Count what the engine computed, read, cached, refused and freed, so that a router's mistakes cannot hide."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

_REQUESTS_KEPT = 1000


@dataclass(slots=True)
class RequestRecord:
    """Where the KV of one request's prompt came from; all figures are tokens.

    ``prompt = computed + cached + loaded + read`` for a request that ended well: ``cached`` is in the prefix cache,
    ``loaded`` from a tier below the GPUs. ``history`` is the part of the prompt whose KV existed somewhere this engine
    knows of: these, or the handle it was given. ``history_recomputed`` is what of it was computed anyway.
    """

    request_id: str
    engine_request_id: str
    form: Literal["local", "export", "export_with_history", "import"]
    prompt: int
    computed: int = 0
    cached: int = 0
    read: int = 0
    loaded: int = 0
    history: int = 0
    history_recomputed: int = 0
    generated: int = 0
    finish: str = "running"
    handle: bool = False

    @property
    def known(self) -> int:
        """Return the tokens of the prompt whose KV was not computed here: what usage calls cached."""
        return self.cached + self.loaded + self.read


@dataclass(slots=True)
class Ledger:
    """Totals since the engine's start, and the latest requests."""

    requests: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    """Prompt tokens whose KV was computed here."""
    generated_tokens: int = 0
    recomputed_after_preemption_tokens: int = 0
    history_tokens: Counter[str] = field(default_factory=Counter)
    """By source: cached (prefix cache), loaded (tiers), prefill_to_decode and decode_to_prefill (read), recomputed."""
    kv_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bytes a real engine would have moved, by (direction of the session's flow, sent or received)."""
    handles: Counter[str] = field(default_factory=Counter)
    """Life of handles made here: given, undeliverable, read, released_unread, expired, expired_while_read.

    ``released_too_late`` counts releases of blocks that were not pinned any more.
    """
    refused_handles: Counter[str] = field(default_factory=Counter)
    """Reads this engine refused as the holder, by reason."""
    failed_reads: Counter[str] = field(default_factory=Counter)
    """Reads this engine tried as the reader and gave up, by reason."""
    kv_protocol_errors: Counter[str] = field(default_factory=Counter)
    """Wrong kv_transfer_params, by reason."""
    kv_consequences: Counter[str] = field(default_factory=Counter)
    """The same errors by what vLLM 0.32 would have done."""
    violations: Counter[str] = field(default_factory=Counter)
    """What a router must never send to this protocol's engines, by reason; a real engine may not notice."""
    failed_releases: int = 0
    """Notices to other engines that their blocks are free, which they did not get or could not use."""
    preemptions: int = 0
    aborted: int = 0
    lost_seconds: float = 0.0
    """Time the engine fell behind its profile because the CPU was busy, and gave up catching up."""
    worst_lateness_seconds: float = 0.0
    """Largest delay of a step against its time in the profile."""
    recent: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=_REQUESTS_KEPT))

    def close(self, record: RequestRecord, finish: str) -> None:
        """End a request's record and add it to the totals; its place among the recent ones is kept."""
        record.finish = finish
        self.requests[finish] += 1
        self.prompt_tokens += record.prompt
        self.prefilled_tokens += record.computed
        self.generated_tokens += record.generated
        self.history_tokens["cached"] += record.cached
        self.history_tokens["loaded"] += record.loaded
        self.history_tokens["recomputed"] += record.history_recomputed
        if record.read:
            self.history_tokens["prefill_to_decode" if record.form == "import" else "decode_to_prefill"] += record.read

    def to_json(self) -> dict[str, object]:
        """Return everything as plain JSON values."""
        return {
            "requests": dict(self.requests),
            "prompt_tokens": self.prompt_tokens,
            "prefilled_tokens": self.prefilled_tokens,
            "generated_tokens": self.generated_tokens,
            "recomputed_after_preemption_tokens": self.recomputed_after_preemption_tokens,
            "history_tokens": dict(self.history_tokens),
            "kv_bytes": {f"{direction}_{way}": count for (direction, way), count in self.kv_bytes.items()},
            "handles": dict(self.handles),
            "refused_handles": dict(self.refused_handles),
            "failed_reads": dict(self.failed_reads),
            "kv_protocol_errors": dict(self.kv_protocol_errors),
            "kv_consequences": dict(self.kv_consequences),
            "violations": dict(self.violations),
            "failed_releases": self.failed_releases,
            "preemptions": self.preemptions,
            "aborted": self.aborted,
            "lost_seconds": self.lost_seconds,
            "worst_lateness_seconds": self.worst_lateness_seconds,
            "recent": [
                {name: getattr(record, name) for name in RequestRecord.__dataclass_fields__} for record in self.recent
            ],
        }
