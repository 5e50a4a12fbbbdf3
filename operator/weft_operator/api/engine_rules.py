"""What an engine cannot do, beyond its own fields: refused when a service is applied, with the field and the fix."""

import re
from typing import Any

from weft_core.plan import Role
from weft_operator.api.base import Rule
from weft_operator.api.engine_merge import engine_of_role

_LOCAL_POLICIES = ("always-local", "fixed-x")
"""Policies that prefill at the decode worker whatever the load."""
REMOTE_ONLY = ("sglang", "neuron")
"""Engines whose decode workers cannot prefill."""
_FIXED_ROLE = (*REMOTE_ONLY, "tensorrt-llm")
"""Engines that start as a prefill or a decode server (``FIXED_ROLE`` of their adapters)."""
_OF_BOTH = ("symmetric", "hybrid")
"""Layouts in which workers have both roles."""

_NO_RANK_HEADER = r":v?0[.]([0-4][.][0-9]+|5[.][0-9])([^0-9@][^/@]*)?(@.*)?$"
"""Images whose tag says SGLang 0.5.9 or older: X-Data-Parallel-Rank is read since 0.5.10 (pull request 19832)."""


def _is(spec: Any, engine: str) -> bool:
    return bool(spec.engine.type == engine)


def _reads_back(spec: Any) -> bool:
    transfer = spec.engine.kv_transfer
    if not _is(spec, "vllm") or not transfer.bidirectional or transfer.block_tokens is None:
        return True
    return bool(transfer.block_tokens.decode <= transfer.block_tokens.prefill)


def _of_role(role: Role, field: str, otherwise: str) -> str:
    """Return what CEL takes for a number of a role: its own, else the shared one, else another."""
    own, shared = f"self.engine.{role}", "self.engine"
    return (
        f"(has({own}) && has({own}.{field}) ? {own}.{field} : has({shared}.{field}) ? {shared}.{field} : {otherwise})"
    )


def _sequences_fit(role: Role) -> Rule:
    def holds(spec: Any) -> bool:
        engine = engine_of_role(spec.engine, role)
        seqs, tokens = engine.max_num_seqs, engine.max_num_batched_tokens
        return engine.type != "vllm" or seqs is None or tokens is None or seqs <= tokens

    seqs, tokens = _of_role(role, "maxNumSeqs", "1"), _of_role(role, "maxNumBatchedTokens", "1048576")
    return Rule(
        f"self.engine.type != 'vllm' || {seqs} <= {tokens}",
        f"spec.engine.maxNumSeqs: of {role} workers it is above maxNumBatchedTokens, and every sequence of a step "
        f"takes a token; raise maxNumBatchedTokens or lower maxNumSeqs, in spec.engine.{role} or spec.engine",
        holds,
        culprit=lambda spec: _sequences_and_tokens(spec, role),
        cel_culprit=("%d sequences, %d tokens", f"[{seqs}, {tokens}]"),
    )


def _sequences_and_tokens(spec: Any, role: Role) -> str:
    engine = engine_of_role(spec.engine, role)
    return f"{engine.max_num_seqs} sequences, {engine.max_num_batched_tokens} tokens"


def _addresses_ranks(spec: Any) -> bool:
    if not _is(spec, "sglang") or not re.search(_NO_RANK_HEADER, engine_of_role(spec.engine, "decode").image or ""):
        return True
    pools = (pool for pool in spec.capacity.pools if "decode" in pool.roles)
    return all(one.dp == 1 for pool in pools for one in pool.parallelism or ())


_WITH_ADAPTERS = ("vllm", "sglang", "mock")

ENGINE_RULES: tuple[Rule, ...] = (
    Rule(
        f"!has(self.model.adapters) || self.engine.type in {list(_WITH_ADAPTERS)}",
        "spec.model.adapters: only vllm, sglang and mock load adapters; remove them, or use one of these engines",
        lambda s: s.model.adapters is None or s.engine.type in _WITH_ADAPTERS,
    ),
    Rule(
        "self.engine.type != 'sglang' || self.model.kvCacheDtype != 'fp8'",
        "spec.model.kvCacheDtype: sglang has two formats of fp8; choose fp8_e4m3 or fp8_e5m2",
        lambda s: not _is(s, "sglang") or s.model.kv_cache_dtype != "fp8",
    ),
    Rule(
        "self.engine.type != 'tensorrt-llm' || self.model.kvCacheDtype in ['auto', 'fp8']",
        "spec.model.kvCacheDtype: tensorrt-llm takes auto or fp8; choose one of them",
        lambda s: not _is(s, "tensorrt-llm") or s.model.kv_cache_dtype in ("auto", "fp8"),
    ),
    Rule(
        f"!(self.engine.type in {list(REMOTE_ONLY)}) || !has(self.planning.layouts)"
        " || !('colocated' in self.planning.layouts)",
        "spec.planning.layouts: decode workers of sglang and neuron take only what a prefill worker computed; remove "
        "colocated",
        lambda s: s.engine.type not in REMOTE_ONLY or "colocated" not in (s.planning.layouts or ()),
    ),
    Rule(
        f"!(self.engine.type in {list(_FIXED_ROLE)}) || !has(self.planning.layouts)"
        f" || !self.planning.layouts.exists(l, l in {list(_OF_BOTH)})",
        "spec.planning.layouts: a worker of sglang, tensorrt-llm and neuron starts with one role and cannot have both; "
        "remove symmetric and hybrid",
        lambda s: s.engine.type not in _FIXED_ROLE or not set(s.planning.layouts or ()) & {*_OF_BOTH},
    ),
    Rule(
        f"!(self.engine.type in {list(REMOTE_ONLY)}) || !(self.routing.policy in {list(_LOCAL_POLICIES)})",
        "spec.routing.policy: decode workers of sglang and neuron cannot prefill; choose another policy, such as weft",
        lambda s: s.engine.type not in REMOTE_ONLY or s.routing.policy not in _LOCAL_POLICIES,
    ),
    Rule(
        "self.engine.type != 'sglang' || self.networkPolicy.enabled",
        "spec.networkPolicy.enabled: sglang's prefill API listens where its bootstrap server does, on all interfaces, "
        "and only the network policy keeps strangers off it; leave it on",
        lambda s: not _is(s, "sglang") or s.network_policy.enabled,
    ),
    Rule(
        "self.engine.type != 'vllm' || !self.engine.kvTransfer.bidirectional || "
        "!has(self.engine.kvTransfer.blockTokens) || "
        "self.engine.kvTransfer.blockTokens.decode <= self.engine.kvTransfer.blockTokens.prefill",
        "spec.engine.kvTransfer.blockTokens: prefill workers read history back only from blocks no larger than their "
        "own; make both the same, or set bidirectional to false",
        _reads_back,
    ),
    Rule(
        "!has(self.engine.kvTransfer.proofSeconds) || self.engine.type == 'vllm'",
        "spec.engine.kvTransfer.proofSeconds: only vllm's KV paths are proven; remove it",
        lambda s: s.engine.kv_transfer.proof_seconds is None or _is(s, "vllm"),
    ),
    Rule(
        "self.engine.type != 'sglang' || !(has(self.engine.decode) && has(self.engine.decode.image)"
        f" ? self.engine.decode.image.matches('{_NO_RANK_HEADER}')"
        f" : has(self.engine.image) && self.engine.image.matches('{_NO_RANK_HEADER}'))"
        " || self.capacity.pools.all(p, !('decode' in p.roles) || !has(p.parallelism)"
        " || p.parallelism.all(w, w.dp == 1))",
        "spec.engine.image: SGLang before 0.5.10 takes no rank from the router (X-Data-Parallel-Rank), so sessions "
        "would not stay on one; use a newer image, or set dp to 1 in spec.capacity.pools.parallelism",
        _addresses_ranks,
    ),
    _sequences_fit("prefill"),
    _sequences_fit("decode"),
)
