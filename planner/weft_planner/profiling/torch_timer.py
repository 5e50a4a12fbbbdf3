"""Time operators with torch: on a CUDA GPU by its own clock under CUDA graphs, on a CPU by one thread's CPU time.

On a GPU an operator runs many times in a row, each time on weights or a KV cache of their own, so that none is in the
L2 cache when it is needed, as in a pass through all layers. What it computes from is written just before in a pass, and
stays in the cache here too. The CPU is for trials at toy size: one thread's own time is the same on an idle and on a
busy machine. torch is imported when the timer is made, and nowhere else; it comes with the extra ``profile``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Literal

from weft_planner.profiling.cuda_graphs import GpuTiming, GraphClock, flash_attention
from weft_planner.profiling.fused import kernels, rotations
from weft_planner.profiling.operators import Operator, OperatorUnknownError

Dtype = Literal["bfloat16", "float16", "float32"]
Run = Callable[[], object]
_COLD_BYTES = 512 * 2**20
"""The copies of an operator's weights together: several times the L2 cache of any GPU (H100: 50 MB, B200: 126 MB)."""
_MOST_COPIES = 64
_GRAPH_S = 2e-3
"""Work of one graph: far more than the microseconds by which the events around it are off."""
_MOST_RUNS = 256
_EPSILON = 1e-5
_THETA = 500_000.0


class TorchMissingError(Exception):
    """Report that torch, or the device asked for, is not there; the message says what to install or choose."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """On a CPU: how often an operator runs, first without counting, then for the median, within a bound of seconds."""

    warm_up: int = 3
    counted: int = 15
    budget_s: float = 2.0


class TorchTimer:
    """Time operators on one device."""

    def __init__(
        self, *, device: str = "cuda", dtype: Dtype = "bfloat16", repetition: Repetition = Repetition()
    ) -> None:
        """Find the device; ``fused`` says what runs the small operators, ``last`` how a GPU's last timing came about.

        Raises:
            TorchMissingError: torch is not installed, or there is no such device.
        """
        try:
            import torch
        except ImportError as error:
            raise TorchMissingError("torch is not installed: pip install 'weft[planner,profile]'") from error
        self._torch: Any = torch
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise TorchMissingError("torch sees no CUDA GPU; run where there is one, or use --device cpu for a trial")
        self._device = torch.device(device)
        self._dtype = getattr(torch, dtype)
        self._cuda = self._device.type == "cuda"
        if self._cuda and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._repetition = repetition
        if not self._cuda:
            torch.set_num_threads(1)
        with torch.inference_mode():
            self._fused, self.fused = kernels(torch, self._device, dtype)
        self.last: GpuTiming | None = None
        self._clock: GraphClock | None = None

    @property
    def name(self) -> str:
        """Return the device's name."""
        return str(self._torch.cuda.get_device_name(self._device)) if self._cuda else "cpu"

    @property
    def gpus(self) -> int:
        """Return how many GPUs this machine has, 0 when times are taken on a CPU."""
        return int(self._torch.cuda.device_count()) if self._cuda else 0

    @property
    def versions(self) -> str:
        """Return the versions that the times depend on."""
        torch = self._torch
        return f"torch {torch.__version__}" + (f", CUDA {torch.version.cuda}" if self._cuda else "")

    def seconds(self, operator: Operator) -> float:
        """Return the median time of an operator.

        Raises:
            OperatorUnknownError: the device has no memory for it, or it needs more than one GPU.
        """
        torch = self._torch
        try:
            with torch.inference_mode():
                return self._median(self._prepared(operator))
        except torch.OutOfMemoryError as error:
            raise OperatorUnknownError(f"no memory for {operator}") from error
        finally:
            if self._cuda:
                torch.cuda.empty_cache()

    def _median(self, runs: Sequence[Run]) -> float:
        if self._cuda:
            self.last = self._graph_timing(runs)
            return self.last.seconds
        began = perf_counter()
        for _ in range(self._repetition.warm_up):
            self._timed_cpu(runs[0])
        times: list[float] = []
        while len(times) < self._repetition.counted:
            times.append(self._timed_cpu(runs[0]))
            if len(times) >= 3 and perf_counter() - began > self._repetition.budget_s:
                break
        return median(times)

    def _timed_cpu(self, run: Run) -> float:
        began = thread_time()
        run()
        return thread_time() - began

    def _graph_timing(self, runs: Sequence[Run]) -> GpuTiming:
        """Time a graph of all copies, or of several rounds through them where they take little time."""
        cuda = self._torch.cuda
        for run in runs[:2]:
            run()
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        for run in runs:
            run()
        end.record()
        end.synchronize()
        once = max(float(begin.elapsed_time(end)) / 1e3, 1e-6)
        rounds = max(1, min(ceil(_GRAPH_S / once), _MOST_RUNS // len(runs)))

        def all_of_them() -> None:
            for run in runs:
                run()

        if self._clock is None:
            self._clock = GraphClock(self._torch, self._device)
        timing = self._clock.timing(all_of_them, runs=rounds)
        return replace(timing, seconds=timing.seconds / len(runs))

    def _copies(self, elements: int) -> int:
        """Return how many weights or caches of so many elements to go through, so that each one is cold."""
        if not self._cuda:
            return 1
        return max(2, min(_MOST_COPIES, ceil(_COLD_BYTES / (elements * int(self._dtype.itemsize)))))

    def _tensor(self, *shape: int) -> Any:
        return self._torch.randn(*shape, dtype=self._dtype, device=self._device) * 0.1

    def _prepared(self, operator: Operator) -> list[Run]:
        """Return the operator as things to run, one for each copy of what must be cold, inputs allocated."""
        makers: dict[str, Callable[[Operator], list[Run]]] = {
            "gemm": self._gemm,
            "head": self._gemm,
            "experts": self._experts,
            "prefill_attention": self._prefill_attention,
            "decode_attention": self._decode_attention,
            "norm": self._norm,
            "gated": self._gated,
            "rotary": self._rotary,
            "embedding": self._embedding,
        }
        if operator.kind not in makers:
            raise OperatorUnknownError(f"{operator.kind} needs {operator.count} GPUs; it is estimated otherwise")
        return makers[operator.kind](operator)

    def _gemm(self, op: Operator) -> list[Run]:
        x = self._tensor(op.rows, op.inner)
        weights = [self._tensor(op.outer, op.inner) for _ in range(self._copies(op.outer * op.inner))]
        linear = self._torch.nn.functional.linear
        return [partial(linear, x, weight) for weight in weights]

    def _experts(self, op: Operator) -> list[Run]:
        """Run the experts that tokens touch when each chooses evenly at random, each on its share of the tokens."""
        share = op.chosen / op.count
        touched = min(op.count, max(op.chosen, round(op.count * (1 - (1 - share) ** op.rows))))
        each = max(1, round(op.rows * op.chosen / touched))
        silu, bmm = self._torch.nn.functional.silu, self._torch.bmm
        x = self._tensor(touched, each, op.inner)

        def run(up: Any, down: Any) -> object:
            gate, value = bmm(x, up).chunk(2, dim=-1)
            return bmm(silu(gate) * value, down)

        return [
            partial(run, self._tensor(touched, op.inner, 2 * op.outer), self._tensor(touched, op.outer, op.inner))
            for _ in range(self._copies(3 * touched * op.inner * op.outer))
        ]

    def _prefill_attention(self, op: Operator) -> list[Run]:
        """Attend from new tokens to all cached ones and causally to one another."""
        from torch.nn.attention.bias import causal_lower_right

        total = op.context + op.rows
        query = self._tensor(1, op.rows, op.heads, op.head_dim).transpose(1, 2)
        mask = causal_lower_right(op.rows, total)
        return [
            partial(self._attend, op, query, key, value, attn_mask=mask) for key, value in self._caches(op, 1, total)
        ]

    def _decode_attention(self, op: Operator) -> list[Run]:
        """Attend from one token of each sequence to all its cached ones."""
        query = self._tensor(op.rows, op.heads, 1, op.head_dim)
        return [partial(self._attend, op, query, key, value) for key, value in self._caches(op, op.rows, op.context)]

    def _caches(self, op: Operator, sequences: int, tokens: int) -> list[tuple[Any, Any]]:
        """Return keys and values, laid out token by token as engines keep them."""
        shape = (sequences, tokens, op.kv_heads, op.head_dim)
        copies = self._copies(2 * sequences * tokens * op.kv_heads * op.head_dim)
        return [(self._tensor(*shape).transpose(1, 2), self._tensor(*shape).transpose(1, 2)) for _ in range(copies)]

    def _attend(self, op: Operator, query: Any, key: Any, value: Any, **mask: Any) -> Any:
        attend = self._torch.nn.functional.scaled_dot_product_attention
        with flash_attention():
            return attend(query, key, value, enable_gqa=op.heads != op.kv_heads, **mask)

    def _norm(self, op: Operator) -> list[Run]:
        """Add the residual, then norm."""
        x, residual, weight = self._tensor(op.rows, op.outer), self._tensor(op.rows, op.outer), self._tensor(op.outer)
        return [partial(self._fused.add_rms_norm, x, residual, weight, _EPSILON)]

    def _gated(self, op: Operator) -> list[Run]:
        return [partial(self._fused.silu_and_mul, self._tensor(op.rows, 2 * op.outer))]

    def _rotary(self, op: Operator) -> list[Run]:
        """Rotate queries and keys, and store keys and values in the cache."""
        torch = self._torch
        qkv = self._tensor(op.rows, (op.heads + 2 * op.kv_heads) * op.head_dim)
        keys, values = (self._tensor(op.rows, op.kv_heads, op.head_dim) for _ in range(2))
        positions = torch.arange(op.rows, device=self._device)
        table = rotations(torch, op.rows, op.head_dim, theta=_THETA, device=self._device)
        rotate = self._fused.rotate_and_store
        return [partial(rotate, qkv, table, positions, positions, keys, values, heads=op.heads)]

    def _embedding(self, op: Operator) -> list[Run]:
        weight = self._tensor(op.inner, op.outer)
        ids = self._torch.randint(0, op.inner, (op.rows,), device=self._device)
        return [partial(self._torch.nn.functional.embedding, ids, weight)]
