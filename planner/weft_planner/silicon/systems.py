"""The systems and backends that NVIDIA's tables of operator times are of."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

System = Literal[
    "a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300", "l40s", "rtx_pro_6000_server"
]
"""A system with tables, by the name that these use."""
Backend = Literal["vllm", "sglang", "tensorrt-llm"]
"""An engine type with tables."""
VERSION = r"^[0-9][0-9A-Za-z.+-]*$"
"""The form of a backend's version."""

SYSTEMS: Mapping[str, System] = MappingProxyType(
    {
        "nvidia-a100-80": "a100_sxm",
        "nvidia-h100": "h100_sxm",
        "nvidia-h200": "h200_sxm",
        "nvidia-b200": "b200_sxm",
        "nvidia-b300": "b300_sxm",
        "nvidia-gb200": "gb200",
        "nvidia-gb300": "gb300",
        "nvidia-l40s": "l40s",
        "nvidia-rtx-pro-6000": "rtx_pro_6000_server",
    }
)
"""Names of the tables' systems by the name that ``gpuType`` uses."""
GPU_TYPES: Mapping[System, str] = MappingProxyType({system: gpu for gpu, system in SYSTEMS.items()})
"""The same the other way round."""
BACKENDS: Mapping[str, str] = MappingProxyType({"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"})
"""Names of the tables' backends by ``engine.type``."""
