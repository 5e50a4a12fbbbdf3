"""Which GPU this machine has, how it is clocked, and which software runs on it."""

import platform
import re
import shutil
import subprocess
from typing import Any

from weft_core.gpus import GPUS

_FIELDS = (
    "name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem",
    "power.limit", "power.draw", "temperature.gpu", "clocks_event_reasons.active",
)  # fmt: skip


def _queried(field: str) -> str:
    """Return one field of the first GPU as nvidia-smi gives it; empty where there is no GPU or no such field."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    words = [program, f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return ""
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else ""


def gpu_name() -> str:
    """Return the name of the first GPU, by nvidia-smi or else by torch; empty where there is none."""
    if name := _queried("name"):
        return name
    try:
        import torch
    except ImportError:
        return ""
    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else ""


def catalogued(name: str) -> str:
    """Return the catalogue's name of a GPU that names itself, as in "NVIDIA H100 80GB HBM3"; "" where it has none."""
    words = set(re.findall(r"[a-z0-9]+", re.sub(r"(\d)gb\b", r"\1", name.lower())))
    return next((known for known in GPUS if set(known.split("-")) <= words), "")


def card_state() -> dict[str, str]:
    """Return name, driver, clocks and power of the first GPU, field by field, as nvidia-smi gives them."""
    every = _queried(",".join(_FIELDS)).split(", ")
    if len(every) == len(_FIELDS):
        return dict(zip(_FIELDS, every, strict=True))
    # One field that this driver does not know makes it refuse all of them.
    return {field: value for field in _FIELDS if (value := _queried(field))}


def software(torch: Any) -> dict[str, str]:
    """Return the versions that times depend on."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
    try:
        import triton
    except ImportError:
        return found
    return {**found, "triton": str(triton.__version__)}
