"""Builders of every object that a service owns: pure, deterministic, one module per kind of object."""

from collections.abc import Sequence

from weft_operator.desired.config import front_config, live_config, plan_config, router_config
from weft_operator.desired.coordinator import coordinator
from weft_operator.desired.disruption import disruption_budgets
from weft_operator.desired.identity import redis_file, service_account, token_hash, token_secret
from weft_operator.desired.rendering import PlanRecord, Rendering
from weft_operator.desired.router import Mounts
from weft_operator.desired.services import services
from weft_operator.desired.workers import statefulset
from weft_operator.fleet import Worker
from weft_operator.manifest import Manifest

__all__ = ["PlanRecord", "Rendering", "desired_objects"]


def desired_objects(rendering: Rendering, workers: Sequence[Worker], *, token: bytes) -> tuple[Manifest, ...]:
    """Return all objects of a service in the order in which they are applied: what pods mount comes first."""
    config = router_config(rendering)
    front = front_config(rendering)
    mounts = Mounts(
        config=config["metadata"]["name"],
        front=(front or config)["metadata"]["name"],
        token_hash=token_hash(token),
        redis_file=redis_file(rendering, token),
    )
    return (
        service_account(rendering),
        token_secret(rendering, token),
        config,
        *(() if front is None else (front,)),
        live_config(rendering),
        plan_config(rendering),
        *services(rendering),
        *disruption_budgets(rendering),
        *(statefulset(rendering, worker, mounts) for worker in sorted(workers)),
        coordinator(rendering, mounts),
    )
