"""How the GPUs of a worker with whole experts exchange tokens, as the arguments of an engine say."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

AllToAll = Literal["", "deepep"]
"""As the engine does by itself (vLLM and SGLang: collectives), or by DeepEP's kernels."""
FLAGS: Mapping[str, str] = MappingProxyType({"vllm": "--all2all-backend", "sglang": "--moe-a2a-backend"})
"""The flag that chooses, by ``engine.type``. Its values for DeepEP begin with ``deepep``."""


def all_to_all_of(engine: str, arguments: Iterable[str]) -> AllToAll:
    """Return what an engine's arguments choose; the last one counts."""
    flag = FLAGS.get(engine)
    found: AllToAll = ""
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        given = value if equals else argument
        if flag is not None and (name if equals else before).replace("_", "-") == flag:
            found = "deepep" if given.startswith("deepep") else ""
        before = argument
    return found
