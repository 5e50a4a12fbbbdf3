"""Builders of every object that a service owns: pure, deterministic, one module per kind of object."""

from weft_core.plan import PlannedGroup
from weft_operator.api.objects import Manifest
from weft_operator.render.config_maps import front_config, live_config, plan_config, router_config
from weft_operator.render.coordinator import coordinator, endpoint_picker
from weft_operator.render.disruption_budgets import disruption_budgets
from weft_operator.render.gateway import gateway_objects
from weft_operator.render.identity import redis_file, service_account, token_hash, token_secret
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.mesh import mesh_objects
from weft_operator.render.network_policies import network_policies
from weft_operator.render.router_container import Mounts
from weft_operator.render.services import services
from weft_operator.render.worker_groups import worker_group

__all__ = ["PlanRecord", "Rendering", "desired_objects", "mounts_of"]


def mounts_of(rendering: Rendering, *, token: bytes) -> Mounts:
    """Return the names and hashes that pods of a service mount."""
    config = router_config(rendering)
    front = front_config(rendering)
    return Mounts(
        config=config["metadata"]["name"],
        front=(front or config)["metadata"]["name"],
        token_hash=token_hash(token),
        redis_file=redis_file(rendering, token),
    )


def desired_objects(rendering: Rendering, *, token: bytes) -> tuple[Manifest, ...]:
    """Return all objects of a service in the order in which they are applied: what pods mount comes first."""
    config = router_config(rendering)
    front = front_config(rendering)
    mounts = mounts_of(rendering, token=token)
    return (
        service_account(rendering),
        token_secret(rendering, token),
        config,
        *(() if front is None else (front,)),
        live_config(rendering),
        plan_config(rendering),
        *services(rendering),
        *disruption_budgets(rendering),
        *network_policies(rendering),
        *(worker_group(rendering, group, mounts) for group in _places(rendering)),
        coordinator(rendering, mounts),
        *endpoint_picker(rendering, mounts),
        *gateway_objects(rendering),
        *mesh_objects(rendering),
    )


def _places(rendering: Rendering) -> list[PlannedGroup]:
    """Return one group for each component, degree and pool, in a fixed order."""
    groups = rendering.record.plan.groups
    return sorted(
        {(rendering.component(group.role), group.degree, group.pool): group for group in groups}.values(),
        key=lambda group: (rendering.component(group.role), group.degree, group.pool),
    )
