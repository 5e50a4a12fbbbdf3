"""Time operators with torch: on a CUDA GPU by its own clock with cold caches, on a CPU by one thread's CPU time.

The CPU is for trials at toy size: one thread's own time is the same on an idle and on a busy machine. torch is imported
when the timer is made, and nowhere else; it comes with the extra ``profile``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Literal

from weft_planner.profiling.operators import Operator, OperatorUnknownError

Dtype = Literal["bfloat16", "float16", "float32"]
_FLUSH_BYTES = 256 * 2**20
"""More than the L2 cache of any GPU: weights are never in it when a layer needs them."""


class TorchMissingError(Exception):
    """Report that torch, or the device asked for, is not there; the message says what to install or choose."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """How often an operator runs: first without counting, then for the median, within a bound of seconds."""

    warm_up: int = 3
    counted: int = 15
    budget_s: float = 2.0


class TorchTimer:
    """Time operators on one device."""

    def __init__(
        self, *, device: str = "cuda", dtype: Dtype = "bfloat16", repetition: Repetition = Repetition()
    ) -> None:
        """Find the device.

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
        self._repetition = repetition
        if not self._cuda:
            torch.set_num_threads(1)
        self._flush = torch.empty(_FLUSH_BYTES if self._cuda else 0, dtype=torch.int8, device=self._device)

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

    def _median(self, run: Callable[[], object]) -> float:
        timed = self._timed_cuda if self._cuda else self._timed_cpu
        began = perf_counter()
        for _ in range(self._repetition.warm_up):
            timed(run)
        times: list[float] = []
        while len(times) < self._repetition.counted:
            times.append(timed(run))
            if len(times) >= 3 and perf_counter() - began > self._repetition.budget_s:
                break
        return median(times)

    def _timed_cpu(self, run: Callable[[], object]) -> float:
        began = thread_time()
        run()
        return thread_time() - began

    def _timed_cuda(self, run: Callable[[], object]) -> float:
        """Time one run by the GPU's clock; flushing its cache before keeps it busy while the run is being launched."""
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self._flush.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _tensor(self, *shape: int) -> Any:
        return self._torch.randn(*shape, dtype=self._dtype, device=self._device) * 0.1

    def _prepared(self, operator: Operator) -> Callable[[], object]:
        """Return the operator as something to run, its inputs allocated."""
        makers: dict[str, Callable[[Operator], Callable[[], object]]] = {
            "gemm": self._gemm,
            "head": self._gemm,
            "experts": self._experts,
            "prefill_attention": self._prefill_attention,
            "decode_attention": self._decode_attention,
            "norm": self._norm,
            "gated": self._gated,
            "embedding": self._embedding,
        }
        if operator.kind not in makers:
            raise OperatorUnknownError(f"{operator.kind} needs {operator.count} GPUs; it is estimated otherwise")
        return makers[operator.kind](operator)

    def _gemm(self, op: Operator) -> Callable[[], object]:
        x, weight = self._tensor(op.rows, op.inner), self._tensor(op.outer, op.inner)
        linear = self._torch.nn.functional.linear
        return lambda: linear(x, weight)

    def _experts(self, op: Operator) -> Callable[[], object]:
        """Run the experts that tokens touch when each chooses evenly at random, each on its share of the tokens."""
        share = op.chosen / op.count
        touched = min(op.count, max(op.chosen, round(op.count * (1 - (1 - share) ** op.rows))))
        each = max(1, round(op.rows * op.chosen / touched))
        silu = self._torch.nn.functional.silu
        x = self._tensor(touched, each, op.inner)
        up, down = self._tensor(touched, op.inner, 2 * op.outer), self._tensor(touched, op.outer, op.inner)

        def run() -> object:
            gate, value = self._torch.bmm(x, up).chunk(2, dim=-1)
            return self._torch.bmm(silu(gate) * value, down)

        return run

    def _prefill_attention(self, op: Operator) -> Callable[[], object]:
        """Attend from new tokens to all cached ones and causally to one another."""
        total = op.context + op.rows
        query = self._tensor(1, op.heads, op.rows, op.head_dim)
        key, value = (self._tensor(1, op.kv_heads, total, op.head_dim) for _ in range(2))
        attend = self._torch.nn.functional.scaled_dot_product_attention
        grouped = op.heads != op.kv_heads
        if not op.context:
            return lambda: attend(query, key, value, is_causal=True, enable_gqa=grouped)
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(op.rows, total)
        return lambda: attend(query, key, value, attn_mask=mask, enable_gqa=grouped)

    def _decode_attention(self, op: Operator) -> Callable[[], object]:
        """Attend from one token of each sequence to all its cached ones."""
        query = self._tensor(op.rows, op.heads, 1, op.head_dim)
        key, value = (self._tensor(op.rows, op.kv_heads, op.context, op.head_dim) for _ in range(2))
        attend = self._torch.nn.functional.scaled_dot_product_attention
        grouped = op.heads != op.kv_heads
        return lambda: attend(query, key, value, enable_gqa=grouped)

    def _norm(self, op: Operator) -> Callable[[], object]:
        x, weight = self._tensor(op.rows, op.outer), self._tensor(op.outer)
        rms_norm = self._torch.nn.functional.rms_norm
        return lambda: rms_norm(x, (op.outer,), weight)

    def _gated(self, op: Operator) -> Callable[[], object]:
        x = self._tensor(op.rows, 2 * op.outer)
        silu = self._torch.nn.functional.silu

        def run() -> object:
            gate, value = x.chunk(2, dim=-1)
            return silu(gate) * value

        return run

    def _embedding(self, op: Operator) -> Callable[[], object]:
        weight = self._tensor(op.inner, op.outer)
        ids = self._torch.randint(0, op.inner, (op.rows,), device=self._device)
        embedding = self._torch.nn.functional.embedding
        return lambda: embedding(ids, weight)
