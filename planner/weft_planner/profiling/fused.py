"""The small operators between matrix products and attention, as engines fuse them: by Triton where it can be had.

``kernels`` runs Triton's against torch's on small inputs first, and falls back to torch where they fail or differ.
"""

from typing import Any, Protocol

_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


class FusedKernels(Protocol):
    """Three operators; ``rows`` are tokens, tensors are contiguous."""

    def add_rms_norm(self, x: Any, residual: Any, weight: Any, eps: float) -> Any:
        """Add x [rows, size] to the residual, in place, and return the RMS norm of the sum times the weight."""

    def silu_and_mul(self, x: Any) -> Any:
        """Return silu of the left half of x [rows, 2 width] times the right half: [rows, width]."""

    def rotate_and_store(
        self, qkv: Any, cos_sin: Any, positions: Any, slots: Any, keys: Any, values: Any, *, heads: int
    ) -> None:
        """Rotate queries in place; write rotated keys and the values to their slots of the cache.

        qkv is [rows, (heads + 2 KV heads) dim]; cos_sin [positions, dim] in float32, cosines first; keys and values
        are [slots, KV heads, dim]. The rotation pairs element i with i + dim / 2, as Llama's checkpoints have it.
        """


class TorchKernels:
    """The operators by torch alone, for CPUs and as the reference."""

    def __init__(self, torch: Any) -> None:
        """Compute with ``torch``."""
        self._torch = torch

    def add_rms_norm(self, x: Any, residual: Any, weight: Any, eps: float) -> Any:
        """Add x to the residual, in place, and return the norm of the sum."""
        residual += x
        return self._torch.nn.functional.rms_norm(residual, (residual.shape[-1],), weight, eps)

    def silu_and_mul(self, x: Any) -> Any:
        """Return silu of the left half of the columns times the right half."""
        gate, value = x.chunk(2, dim=-1)
        return self._torch.nn.functional.silu(gate) * value

    def rotate_and_store(
        self, qkv: Any, cos_sin: Any, positions: Any, slots: Any, keys: Any, values: Any, *, heads: int
    ) -> None:
        """Rotate the queries in place, and write rotated keys and the values to their slots of the cache."""
        _, kv_heads, dim = keys.shape
        split = qkv.view(qkv.shape[0], heads + 2 * kv_heads, dim)
        cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
        first, second = split[:, : heads + kv_heads].float().chunk(2, dim=-1)
        rotated = self._torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(qkv.dtype)
        split[:, :heads] = rotated[:, :heads]
        keys[slots] = rotated[:, heads:]
        values[slots] = split[:, heads + kv_heads :]


def rotations(torch: Any, positions: int, dim: int, *, theta: float, device: Any) -> Any:
    """Return cosines and sines of the rotary embedding for every position: [positions, dim], float32."""
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies[None, :]
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def kernels(torch: Any, device: Any, dtype: str) -> tuple[FusedKernels, str]:
    """Return what runs the fused operators on a device, and a note: what it is, or why it is not Triton."""
    plain = TorchKernels(torch)
    if device.type != "cuda":
        return plain, "torch"
    try:
        from weft_planner.profiling.triton_kernels import TritonKernels

        fused = TritonKernels(torch)
        found = differences(torch, fused, device, dtype)
    except Exception as error:  # noqa: BLE001 - no compiler, driver or Triton shows in many ways; torch does the same
        return plain, f"torch: Triton failed with {type(error).__name__}: {str(error)[:200]}"
    if not all(off < _TOLERANCE[dtype] for off in found):  # no number is not less either
        return plain, f"torch: Triton's results are off by {', '.join(f'{off:.3g}' for off in found)}"
    return fused, "Triton"


def differences(torch: Any, fused: FusedKernels, device: Any, dtype: str) -> list[float]:
    """Return how far each operator's result lies from torch's in float32, relative to the norm of that."""
    kind = getattr(torch, dtype)
    plain = TorchKernels(torch)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, device=device).to(kind)

    def off(ours: Any, theirs: Any) -> float:
        return float((ours.float() - theirs.float()).norm() / theirs.float().norm())

    x, residual, weight = drawn(5, 96), drawn(5, 96), drawn(96)
    residuals = [residual.clone(), residual.float()]
    normed = plain.add_rms_norm(x.float(), residuals[1], weight.float(), 1e-5)
    found = [off(fused.add_rms_norm(x.clone(), residuals[0], weight, 1e-5), normed), off(*residuals)]
    wide = drawn(5, 2 * 1100)
    found.append(off(fused.silu_and_mul(wide), plain.silu_and_mul(wide.float())))
    heads, kv_heads, dim = 14, 2, 128
    qkv = drawn(5, (heads + 2 * kv_heads) * dim)
    positions, slots = (torch.tensor(values, device=device) for values in ((7, 0, 31, 2, 3), (9, 4, 0, 11, 2)))
    table = rotations(torch, 32, dim, theta=10_000.0, device=device)
    ours = [qkv.clone(), *(torch.zeros(12, kv_heads, dim, dtype=kind, device=device) for _ in range(2))]
    theirs = [qkv.float(), *(torch.zeros(12, kv_heads, dim, device=device) for _ in range(2))]
    for tensors, how in ((ours, fused), (theirs, plain)):
        how.rotate_and_store(tensors[0], table, positions, slots, tensors[1], tensors[2], heads=heads)
    queries = heads * dim
    found.append(off(ours[0][:, :queries], theirs[0][:, :queries]))
    return [*found, *(off(a, b) for a, b in zip(ours[1:], theirs[1:], strict=True))]
