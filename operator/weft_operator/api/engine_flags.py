"""Which arguments and variables of an engine follow from other fields, in every spelling that its parser takes.

Read as the engines' parsers read them: vLLM's ``FlexibleArgumentParser`` and SGLang's argparse take a flag's
unambiguous abbreviations, ``--flag value`` and ``--flag=value``, and vLLM takes underscores for hyphens, a key inside a
JSON value (``--kv-transfer-config.kv_role=…``) and short options (``-tp 4``, ``-n2``). Kubernetes replaces ``$(NAME)``
before any of them sees an argument, so a name must not come out of a variable.

The rules are patterns, because the API server checks them, too (CEL's RE2, which has no lookahead).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

EngineType = Literal["vllm", "sglang", "tensorrt-llm", "mock"]

_FAMILY = "*"


@dataclass(frozen=True, slots=True)
class ManagedFlags:
    """The flags of one engine that the operator sets or that would undo what it sets; one that ends in ``*`` is a
    family, which newer versions may extend."""

    long: tuple[str, ...]
    short: tuple[str, ...] = ()
    """Short options of these, without the hyphen."""
    free: tuple[str, ...] = ()
    """Flags of the author's own, long or short, whose names are the beginnings of managed ones."""


MANAGED: Mapping[EngineType, ManagedFlags] = {
    "vllm": ManagedFlags(
        long=(
            "host",
            "port",
            "uds",
            "grpc*",
            "headless",
            "api-key",
            "ssl*",
            "root-path",
            "config",
            "model",
            "served-model-name",
            "dtype",
            "max-model-len",
            "tensor-parallel-size",
            "pipeline-parallel-size",
            "prefill-context-parallel-size",
            "decode-context-parallel-size",
            "data-parallel*",
            "dp-supervisor*",
            "nnodes",
            "node-rank",
            "master-addr",
            "master-port",
            "kv-transfer-config",
            "kv-cache-dtype",
            "kv-cache-memory-bytes",
            "gpu-memory-utilization",
            "device-memory-utilization",
        ),
        short=("tp", "pp", "dcp", "pcp", "dp", "n", "r"),
        free=("dc",),
    ),
    "sglang": ManagedFlags(
        long=(
            "host",
            "port",
            "grpc*",
            "api-key",
            "admin-api-key",
            "ssl*",
            "fastapi-root-path",
            "config",
            "model",
            "model-path",
            "served-model-name",
            "dtype",
            "context-length",
            "tp",
            "tp-size",
            "tensor-parallel-size",
            "pp",
            "pp-size",
            "pipeline-parallel-size",
            "dp",
            "dp-size",
            "data-parallel-size",
            "nnodes",
            "node-rank",
            "dist-init-addr",
            "nccl-init-addr",
            "kv-cache-dtype",
            "mem-fraction-static",
            "page-size",
            "disaggregation-mode",
            "disaggregation-transfer-backend",
            "disaggregation-bootstrap-port",
        ),
    ),
    "tensorrt-llm": ManagedFlags(
        long=(
            "host",
            "port",
            "grpc",
            "backend",
            "tp-size",
            "tensor-parallel-size",
            "pp-size",
            "pipeline-parallel-size",
            "cp-size",
            "context-parallel-size",
            "gpus-per-node",
            "max-seq-len",
            "extra-llm-api-options",
            "config",
            "server-role",
            "metadata-server-config-file",
            "disagg*",
            "free-gpu-memory-fraction",
            "kv-cache-free-gpu-memory-fraction",
        ),
    ),
    "mock": ManagedFlags(
        long=(
            "model",
            "profile",
            "degree",
            "role",
            "listen",
            "side-channel*",
            "engine-id",
            "max-model-len",
            "kv-lease-seconds",
            "handle-ttl-seconds",
            "bidirectional",
            "nodes*",
            "node-rank",
            "leader",
            "weights",
        ),
    ),
}
"""Flags that follow from other fields; the same flag given twice would quietly break the plan, or open the engine."""

NAME = "^-[^=.]{0,64}"
"""The name of an argument, or the beginning of one that is longer than any flag's: what the patterns are tried on.

They are long, and the API server reckons the product of both lengths: a value of 1,024 characters costs nothing so.
"""

FROM_A_VARIABLE = r"^[^=]*[$][(]"
"""An argument whose flag, or which as a whole, Kubernetes would take from a variable."""

RESERVED_ENV = (
    "^((WEFT|POD|NODE|VLLM_NIXL|VLLM_MEDIA|VLLM_DP|VLLM_RAY_DP|DYN)_"
    "|(VLLM_HOST_IP|VLLM_PORT|VLLM_API_KEY|SGLANG_HOST_IP|SGLANG_PORT|SGLANG_API_KEY)$)"
)
"""Variables that the operator sets, or that say the same as a managed flag."""


def managed_pattern(engine: EngineType) -> str:
    """Return the pattern of the ``NAME`` of an engine's managed flags, in all their spellings."""
    flags = MANAGED[engine]
    names = [name.removesuffix(_FAMILY) for name in flags.long]
    families = [name.removesuffix(_FAMILY) for name in flags.long if name.endswith(_FAMILY)]
    parts = [f"-{_prefixes(names, flags.free)}$"]
    if families:
        parts.append(f"-({'|'.join(map(_either, families))})")
    if flags.short:
        parts.append(f"{_prefixes(flags.short, ('', *flags.free))}$")
        parts.append(f"({'|'.join(flags.short)})")
    return f"^-({'|'.join(parts)})"


def is_managed(engine: EngineType, argument: str) -> bool:
    """Return whether an engine would read an argument as a flag that the operator manages, or might."""
    name = re.match(NAME, argument)
    return name is not None and re.search(managed_pattern(engine), name[0]) is not None


def _either(name: str) -> str:
    """Return the pattern of a name; underscores and hyphens are the same to parsers."""
    return name.replace("-", "[-_]")


def _prefixes(names: Sequence[str], free: Sequence[str], prefix: str = "") -> str:
    """Return the pattern of what may follow ``prefix`` in a prefix of one of the names that is not a free one."""
    letters = sorted({name[len(prefix)] for name in names if name.startswith(prefix) and name != prefix})
    if not letters:
        return ""
    branches = "|".join(f"{_either(letter)}{_prefixes(names, free, prefix + letter)}" for letter in letters)
    return f"({branches})" if prefix in free else f"({branches})?"
