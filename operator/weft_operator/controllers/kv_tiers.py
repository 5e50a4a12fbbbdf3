"""The sub-reconciler of KV cache tiers: it collects what the condition KVCacheTiers is decided from."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from weft_core.heartbeat import WorkerRecord
from weft_operator.api.capacity import Pool
from weft_operator.api.objects import ServiceKey
from weft_operator.controllers.context import ReconcileContext
from weft_operator.errors import ApiError
from weft_operator.status.kv_cache_tiers import (
    START_S,
    TierFacts,
    check_tiers,
    next_check_s,
    reports_faults,
    tier_pods,
)
from weft_operator.status.results import ServiceResult

log = logging.getLogger(__name__)


class NodeMemory(Protocol):
    """The seam to the nodes."""

    async def read_node_memory(self, pools: Sequence[Pool]) -> Mapping[str, int]:
        """Return the allocatable memory of the largest node of each pool, in bytes, as far as it is known."""


async def with_tiers(
    ctx: ReconcileContext,
    result: ServiceResult,
    *,
    nodes: NodeMemory,
    heartbeats: Callable[[ServiceKey], Awaitable[Mapping[str, WorkerRecord]]],
) -> tuple[ServiceResult, float | None]:
    """Return the result with the condition KVCacheTiers, and when to look again.

    Nothing is read for a service without tiers and KV events; heartbeats only for one with files or events, nodes only
    while pods cannot be scheduled.
    """
    record = result.rollout.active or result.plan.record
    if record is None:
        return result, None
    cache, events = record.spec.kv_cache, record.spec.engine.kv_events is not None
    if cache is None and not events:
        return result, None
    facts = TierFacts(
        ready=frozenset(result.workers.ready),
        planned=frozenset(state.name for state in result.workers.states),
        pods=tier_pods(ctx.observed.pods, now=ctx.now),
    )
    if reports_faults(cache, events=events):
        found = result.workers.heartbeats
        facts = replace(facts, heartbeats=await heartbeats(ctx.key) if found is None else found)
    claim = None if cache is None or cache.disk is None else cache.disk.claim
    if claim is not None and claim in ctx.observed.tier_claims:
        facts = replace(facts, claim=ctx.observed.tier_claims[claim], claim_known=True)
    unscheduled = any(not pod.node and pod.age_s >= START_S for pod in facts.waiting)
    if cache is not None and cache.cpu is not None and unscheduled:
        try:
            facts = replace(facts, memory=await nodes.read_node_memory(record.spec.capacity.pools))
        except ApiError as error:  # serving does not need to know
            log.info("node_memory_not_read", extra={"service": str(ctx.key), "error": str(error)})
    return replace(result, tiers=check_tiers(cache, facts)), next_check_s(cache, facts, events=events)
