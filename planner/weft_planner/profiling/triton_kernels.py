"""The small kernels that engines fuse, in Triton: add and RMS norm, SiLU and product, rotary embedding with KV store.

vLLM has each as one kernel (fused_add_rms_norm, silu_and_mul, rotary_embedding and reshape_and_cache); torch alone
would take two to ten. Import it only where Triton is installed; ``fused`` decides.
"""

from typing import Any

import triton
import triton.language as tl

_HEADS = 16
_COLUMNS = 1024


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _add_rms_norm(x, residual, weight, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    row = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, BLOCK)
    mask = at < SIZE
    total = tl.load(x + row + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual + row + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(residual + row + at, total, mask=mask)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / SIZE + eps)
    factor = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(x + row + at, total * scale * factor, mask=mask)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _silu_and_mul(x, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < WIDTH
    gate = tl.load(x + row * 2 * WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + row * 2 * WIDTH + WIDTH + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + at, gate / (1.0 + tl.exp(-gate)) * value, mask=mask)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rotate_and_store(  # type: ignore[no-untyped-def]
    qkv, cos_sin, positions, slots, keys, values,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    lane = tl.arange(0, HALF)[None, :]
    position = tl.load(positions + row)
    slot = tl.load(slots + row)
    cos = tl.load(cos_sin + position * (2 * HALF) + lane)
    sin = tl.load(cos_sin + position * (2 * HALF) + HALF + lane)
    column = head[:, None]
    exists = (column < HEADS + 2 * KV_HEADS) & (lane < HALF)
    at = (row * (HEADS + 2 * KV_HEADS) + column) * (2 * HALF) + lane
    first = tl.load(qkv + at, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(qkv + at + HALF, mask=exists, other=0.0).to(tl.float32)
    turned = (column < HEADS + KV_HEADS) & (lane < HALF)
    a = tl.where(turned, first * cos - second * sin, first)
    b = tl.where(turned, second * cos + first * sin, second)
    query = (column < HEADS) & (lane < HALF)
    tl.store(qkv + at, a, mask=query)
    tl.store(qkv + at + HALF, b, mask=query)
    key = (column >= HEADS) & turned
    key_at = (slot * KV_HEADS + column - HEADS) * (2 * HALF) + lane
    tl.store(keys + key_at, a, mask=key)
    tl.store(keys + key_at + HALF, b, mask=key)
    value = (column >= HEADS + KV_HEADS) & exists
    value_at = (slot * KV_HEADS + column - HEADS - KV_HEADS) * (2 * HALF) + lane
    tl.store(values + value_at, a, mask=value)
    tl.store(values + value_at + HALF, b, mask=value)


class TritonKernels:
    """The fused operators by Triton kernels; shapes as in ``fused.TorchKernels``."""

    def __init__(self, torch: Any) -> None:
        """Allocate with ``torch``."""
        self._torch = torch

    def add_rms_norm(self, x: Any, residual: Any, weight: Any, eps: float) -> Any:
        """Add x to the residual, in place, and return the norm of the sum in x's memory."""
        rows, size = x.shape
        _add_rms_norm[(rows,)](x, residual, weight, eps, SIZE=size, BLOCK=triton.next_power_of_2(size), num_warps=8)
        return x

    def silu_and_mul(self, x: Any) -> Any:
        """Return silu of the left half of the columns times the right half."""
        rows, width = x.shape[0], x.shape[1] // 2
        out = self._torch.empty((rows, width), dtype=x.dtype, device=x.device)
        _silu_and_mul[(rows, triton.cdiv(width, _COLUMNS))](x, out, WIDTH=width, BLOCK=_COLUMNS)
        return out

    def rotate_and_store(
        self, qkv: Any, cos_sin: Any, positions: Any, slots: Any, keys: Any, values: Any, *, heads: int
    ) -> None:
        """Rotate the queries in place, and write rotated keys and the values to their slots of the cache."""
        _, kv_heads, dim = keys.shape
        grid = (qkv.shape[0], triton.cdiv(heads + 2 * kv_heads, _HEADS))
        _rotate_and_store[grid](
            qkv, cos_sin, positions, slots, keys, values,
            HEADS=heads, KV_HEADS=kv_heads, HALF=dim // 2, BLOCK=_HEADS,
        )  # fmt: skip
