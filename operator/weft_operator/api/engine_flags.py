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
from functools import cache
from typing import Literal

EngineType = Literal["vllm", "sglang", "tensorrt-llm", "neuron", "mock"]

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
    abbreviated: bool = True
    """Whether the engine's parser takes the beginning of a flag for the flag, as argparse does and click does not."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Other names of the author's flags, long or short, and the name that is used for both."""


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
            "enable-expert-parallel",
            "nnodes",
            "node-rank",
            "master-addr",
            "master-port",
            "kv-transfer-config",
            "kv-events-config",
            "kv-offloading*",
            "kv-cache-dtype",
            "kv-cache-memory-bytes",
            "gpu-memory-utilization",
            "device-memory-utilization",
            "max-num-seqs",
            "max-num-batched-tokens",
            "quantization",
            "speculative-config",
            "spec-method",
            "spec-model",
            "spec-tokens",
        ),
        short=("tp", "pp", "dcp", "pcp", "dp", "ep", "n", "r", "q", "sc"),
        free=("dc",),
        aliases=(
            ("asc", "api-server-count"),
            ("ac", "attention-config"),
            ("cc", "compilation-config"),
            ("dc", "diffusion-config"),
        ),
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
            "ep",
            "ep-size",
            "expert-parallel-size",
            "enable-dp-attention",
            "nnodes",
            "node-rank",
            "dist-init-addr",
            "nccl-init-addr",
            "kv-cache-dtype",
            "kv-events-config",
            "mem-fraction-static",
            "max-running-requests",
            "chunked-prefill-size",
            "quantization",
            "speculative-algorithm",
            "speculative-draft-model-path",
            "speculative-num-steps",
            "speculative-eagle-topk",
            "speculative-num-draft-tokens",
            "speculative-ngram-max-bfs-breadth",
            "page-size",
            "disaggregation-mode",
            "disaggregation-transfer-backend",
            "disaggregation-bootstrap-port",
            "disaggregation-decode-enable-offload-kvcache",
            "enable-hierarchical-cache",
            "hicache-size",
            "hicache-ratio",
            "hicache-storage-backend*",
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
            "ep-size",
            "moe-expert-parallel-size",
            "cp-size",
            "context-parallel-size",
            "gpus-per-node",
            "max-seq-len",
            "max-batch-size",
            "max-num-tokens",
            "served-model-name",
            "extra-llm-api-options",
            "config",
            "server-role",
            "metadata-server-config-file",
            "disagg*",
            "free-gpu-memory-fraction",
            "kv-cache-free-gpu-memory-fraction",
        ),
        abbreviated=False,
        aliases=(("cluster-size", "moe-cluster-parallel-size"),),
    ),
    "neuron": ManagedFlags(
        long=(
            "host",
            "port",
            "uds",
            "api-key",
            "ssl*",
            "root-path",
            "config",
            "model",
            "served-model-name",
            "device",
            "dtype",
            "max-model-len",
            "tensor-parallel-size",
            "pipeline-parallel-size",
            "data-parallel*",
            "enable-expert-parallel",
            "distributed-executor-backend",
            "block-size",
            "kv-transfer-config",
            "kv-cache-dtype",
            "override-neuron-config",
            "enable-prefix-caching",
            "no-enable-prefix-caching",
            "enable-chunked-prefill",
            "max-num-seqs",
            "max-num-batched-tokens",
            "quantization",
        ),
        short=("tp", "pp", "dp", "q"),
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
            "max-num-seqs",
            "chunk",
            "kv-lease-seconds",
            "handle-ttl-seconds",
            "bidirectional",
            "kv-transfer-config",
            "kv-events-config",
            "nodes*",
            "node-rank",
            "leader",
            "weights",
        ),
        abbreviated=False,
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
    "|NEURON_RT_ASYNC_SENDRECV"
    "|(VLLM_HOST_IP|VLLM_PORT|VLLM_API_KEY|SGLANG_HOST_IP|SGLANG_PORT|SGLANG_API_KEY"
    "|MOONCAKE_CONFIG_PATH|SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR)$)"
)
"""Variables that the operator sets, or that say the same as a managed flag."""


EARLY = "^--?[a-l]"
"""A flag in the first half of the alphabet."""


@cache
def managed_patterns(engine: EngineType) -> tuple[str, str]:
    """Return the patterns of the ``NAME`` of an engine's managed flags, in all their spellings: of ``EARLY`` ones, and
    of the others. One for all would cost the API server more than a rule may."""
    flags = MANAGED[engine]
    early, late = (
        ManagedFlags(
            long=tuple(name for name in flags.long if (name[0] <= "l") is half),
            short=tuple(name for name in flags.short if (name[0] <= "l") is half),
            free=flags.free,
            abbreviated=flags.abbreviated,
        )
        for half in (True, False)
    )
    return _pattern(early), _pattern(late)


def _pattern(flags: ManagedFlags) -> str:
    names = [name.removesuffix(_FAMILY) for name in flags.long]
    families = [name.removesuffix(_FAMILY) for name in flags.long if name.endswith(_FAMILY)]
    whole = _prefixes(names, flags.free) if flags.abbreviated else f"({'|'.join(map(_either, names))})"
    parts = [f"-{whole}$"]
    if families:
        parts.append(f"-({'|'.join(map(_either, families))})")
    if flags.short:
        parts.append(f"{_prefixes(flags.short, ('', *flags.free))}$")
        parts.append(f"({'|'.join(flags.short)})")
    return f"^-({'|'.join(parts)})"


def is_managed(engine: EngineType, argument: str) -> bool:
    """Return whether an engine would read an argument as a flag that the operator manages, or might."""
    name = re.match(NAME, argument)
    early, late = managed_patterns(engine)
    pattern = early if re.search(EARLY, argument) else late
    return name is not None and re.search(pattern, name[0]) is not None


def flag_name(engine: EngineType, argument: str) -> str | None:
    """Return the name of an argument's flag, one for all spellings in full; None for what is a value.

    A flag and its negation have one name. What names a key inside a JSON value, and parses as JSON with others of its
    flag, keeps the key: ``compilation-config.mode``.
    """
    found = re.match(r"--?([A-Za-z_][^=]*)", argument)
    if found is None:
        return None
    name, dot, key = found[1].partition(".")
    name = name.replace("_", "-").removeprefix("no-")
    return f"{dict(MANAGED[engine].aliases).get(name, name)}{dot}{key}"


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
