"""Read how much runs in an engine, how much waits, and how full its KV cache is, from the gauges it exposes."""

import re
from dataclasses import dataclass, field

_SAMPLE = re.compile(rb"^([a-z_:]+)(?:\{([^}]*)\})? ([0-9.eE+-]+)", re.MULTILINE)
_PART = re.compile(rb'(?:^|,)(?:engine|dp_rank)="([^"]*)"')
_LABEL = re.compile(rb'(num_gpu_blocks|block_size)="(\d+)"')


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine says of itself; capacity is None when it does not tell."""

    kv_usage: float = 0.0
    running: int = 0
    waiting: int = 0
    capacity_tokens: int | None = None
    tells_usage: bool = False
    """Whether the page says how full the KV cache is."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """Where an engine's page of metrics is, and what its gauges are called.

    ``usage`` is the part of the KV cache in use, 0 to 1. The capacity in tokens is the product of the gauges of
    ``capacity``, or of two labels of the one that is ``info``.
    """

    running: bytes
    waiting: tuple[bytes, ...]
    usage: bytes
    capacity: tuple[bytes, ...] = ()
    info: bytes = b""
    page: str = "/metrics"
    names: frozenset[bytes] = field(init=False)

    def __post_init__(self) -> None:
        names = frozenset({self.running, *self.waiting, self.usage, *self.capacity, self.info})
        object.__setattr__(self, "names", names)

    def read(self, page: bytes) -> EngineLoad:
        """Read a page of metrics.

        The engine processes of one server, by their labels ``engine`` or ``dp_rank``, are summed and their cache use
        averaged. Of the series of one process, its ranks or priorities, the largest counts: it is the sum, or the same.
        """
        found: dict[bytes, dict[bytes, float]] = {name: {} for name in self.names}
        for name, labels, value in _SAMPLE.findall(page):
            parts = found.get(name)
            if parts is None:
                continue
            part = _PART.search(labels)
            key = part.group(1) if part is not None else b""
            number = _tokens(labels) if name == self.info else float(value)
            parts[key] = max(parts.get(key, number), number)
        usage = found[self.usage].values()
        return EngineLoad(
            kv_usage=sum(usage) / len(usage) if usage else 0.0,
            running=int(sum(found[self.running].values())),
            waiting=int(sum(sum(found[name].values()) for name in self.waiting)),
            capacity_tokens=self._capacity(found),
            tells_usage=bool(usage),
        )

    def _capacity(self, found: dict[bytes, dict[bytes, float]]) -> int | None:
        if self.info:
            return int(sum(found[self.info].values())) or None
        if not self.capacity:
            return None
        first, *others = (found[name] for name in self.capacity)
        total = 0.0
        for part, size in first.items():
            for other in others:
                size *= other.get(part, 0.0)
            total += size
        return int(total) or None


def _tokens(labels: bytes) -> float:
    found = {key: int(number) for key, number in _LABEL.findall(labels)}
    return float(found.get(b"num_gpu_blocks", 0) * found.get(b"block_size", 0))


VLLM = Gauges(
    running=b"vllm:num_requests_running",
    waiting=(b"vllm:num_requests_waiting",),
    usage=b"vllm:kv_cache_usage_perc",
    info=b"vllm:cache_config_info",
)
"""vLLM 0.32, and Neuron's fork of it."""
SGLANG = Gauges(
    running=b"sglang:num_running_reqs",
    waiting=(
        b"sglang:num_queue_reqs",
        b"sglang:num_prefill_prealloc_queue_reqs",
        b"sglang:num_decode_prealloc_queue_reqs",
        b"sglang:num_decode_transfer_queue_reqs",
    ),
    usage=b"sglang:token_usage",
    capacity=(b"sglang:max_total_num_tokens",),
)
"""SGLang with ``--enable-metrics``; without it there is no page."""
TENSORRT_LLM = Gauges(
    running=b"trtllm_num_requests_running",
    waiting=(b"trtllm_num_requests_waiting",),
    usage=b"trtllm_kv_cache_utilization",
    capacity=(b"trtllm_kv_cache_max_blocks", b"trtllm_kv_cache_tokens_per_block"),
    page="/prometheus/metrics",
)
"""TensorRT-LLM with ``return_perf_metrics``; its ``/metrics`` is JSON, and each record is returned once only."""
