"""Which numbers an engine keeps its KV in: what it says, what its transfers weigh, or what its user says.

Memory figures of a profile count KV by that format, whatever the weights have: vLLM's CPU build keeps float32 or
bfloat16 where a GPU would keep fp8.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from weft_core.dimensions import ModelDimensions
from weft_core.memory import kv_layout
from weft_planner.profiling.measurements import MeasurementError

AUTO = "auto"
BYTES: Mapping[str, float] = {
    "float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1,
}  # fmt: skip
"""Bytes of one number; scales beside it are left out of account."""
_NAMES = {4.0: "float32", 2.0: "16 bits", 1.0: "8 bits"}
_NEAR = 0.2
"""How far the bytes of transfers may lie from a format: they come in whole blocks."""
_CACHE_DTYPE = re.compile(r'^vllm:cache_config_info\{[^}]*cache_dtype="([^"]*)"', re.MULTILINE)
_MOVED = re.compile(r"^vllm:nixl_bytes_transferred_sum(?:\{[^}]*\})? ([0-9.eE+-]+)", re.MULTILINE)


def cache_dtype(page: str) -> str:
    """Return the KV format that an engine's metrics page names; empty where it follows the model's or is not told."""
    found = _CACHE_DTYPE.search(page)
    name = found.group(1).rpartition(".")[2] if found else ""
    return name if name in BYTES else ""


def moved_bytes(page: str) -> float | None:
    """Return how many bytes of KV an engine has read from others, of its metrics page; None where that has none."""
    counts = [float(text) for text in _MOVED.findall(page)]
    return sum(counts) if counts else None


def weighed(bytes_per_token: float, model: ModelDimensions) -> str:
    """Return the format that a token's bytes on their way tell, empty where none is near."""
    layout = kv_layout(replace(model, kv_dtype_bytes=1))
    numbers = layout.per_token + layout.per_window_token
    for size, name in _NAMES.items():
        if numbers and abs(bytes_per_token / (numbers * size) - 1) <= _NEAR:
            return name
    return ""


def with_format(model: ModelDimensions, name: str) -> ModelDimensions:
    """Return a model whose KV is kept in a format; as the model says for ``auto`` and nothing.

    Raises:
        MeasurementError: there is no such format.
    """
    if name in ("", AUTO):
        return model
    sizes = {**BYTES, **{word: size for size, word in _NAMES.items()}}
    if name not in sizes:
        raise MeasurementError([f"kvFormat: {name!r} is no format; use {', '.join(BYTES)}, or auto"])
    return replace(model, kv_dtype_bytes=sizes[name])
