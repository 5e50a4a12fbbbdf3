"""Changes of a user's own to the pods that the operator makes."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import DnsLabel

Component = Literal["coordinator", "prefill", "decode"]


class PodTemplatePatch(ApiModel):
    """A strategic merge patch of pod templates; the list is applied in its order, a later entry over an earlier one."""

    component: Component | None = None
    """Pods that it is for; the workers of both roles if absent."""
    pool: DnsLabel | None = None
    """Workers of this pool only."""
    patch: Annotated[
        dict[str, JsonValue],
        Field(max_length=2, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
    ]
    """Parts of a pod template (metadata, spec), as kubectl patch takes them; docs/pod-templates.md lists what is
    protected."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.pool) || !has(self.component) || self.component != 'coordinator'",
            "spec.podTemplates.pool: coordinators run in no pool; remove pool, or choose component prefill or decode",
            lambda t: t.pool is None or t.component != "coordinator",
        ),
    )


Templates = Annotated[list[PodTemplatePatch], Field(max_length=16)]


def pools_known(templates: list[PodTemplatePatch], pools: set[str]) -> bool:
    """Return whether every patch names a pool that is there."""
    return all(item.pool is None or item.pool in pools for item in templates)
