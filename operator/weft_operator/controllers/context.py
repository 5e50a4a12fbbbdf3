"""The context that the sub-reconcilers of one pass share: the observed state, the time, the token, renderings."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from weft_operator.api.objects import UPGRADE_ANNOTATION, Manifest, ServiceKey, annotations_of
from weft_operator.api.pod_template_permissions import permitted_in
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.controllers.permitted_specs import ActivePlan, active_plan
from weft_operator.kube.observe import Observed
from weft_operator.render.config_maps import ledger_text, read_pinned_images
from weft_operator.render.inputs import PlanRecord, Rendering
from weft_operator.render.pinned_images import with_pinned_images
from weft_operator.rollout.ledger import Ledger, read_ledger
from weft_operator.settings import Settings


@dataclass
class ReconcileContext:
    """One pass over one service."""

    key: ServiceKey
    observed: Observed
    now: datetime
    token: bytes
    settings: Settings
    shares_redis_user: bool
    """Whether the service's pods use the operator's Redis user."""
    _renderings: list[tuple[PlanRecord, Rendering]] = field(default_factory=list)

    @property
    def service(self) -> Manifest:
        """Return the service's object."""
        return self.observed.service

    @property
    def generation(self) -> int:
        """Return the generation of the service's spec."""
        return int(self.service["metadata"].get("generation", 0))

    @cached_property
    def permitted(self) -> Collection[str]:
        """Return the permissions of the service's namespace beyond the allow-list of pod templates."""
        return permitted_in(self.settings.pod_templates_allow, self.key.namespace)

    @cached_property
    def active(self) -> ActivePlan:
        """Return the active plan if the spec that it was made from is still permitted."""
        return active_plan(self.observed, self.permitted)

    @cached_property
    def revisions(self) -> tuple[Manifest, ...]:
        """Return the stored plan revisions."""
        return tuple(self.observed.of_kind("ControllerRevision"))

    @property
    def _plan_config(self) -> Manifest | None:
        return self.observed.named("ConfigMap", f"{self.key.name}-plan")

    @cached_property
    def ledger_text(self) -> str:
        """Return the rollout's ledger as it is stored, "" where there is none."""
        return ledger_text(self._plan_config)

    @property
    def ledger(self) -> Ledger:
        """Return the rollout's ledger."""
        return read_ledger(self.ledger_text) or Ledger()

    def rendering(self, record: PlanRecord) -> Rendering:
        """Return the rendering inputs of a plan, with the service's pinned images; computed once for each plan."""
        for known, rendering in self._renderings:
            if known is record and rendering.shares_redis_user == self.shares_redis_user:
                return rendering
        rendering = with_pinned_images(
            Rendering(
                key=self.key,
                uid=self.service["metadata"]["uid"],
                record=record,
                settings=self.settings,
                shares_redis_user=self.shares_redis_user,
            ),
            kept=read_pinned_images(self._plan_config),
            wanted=annotations_of(self.service).get(UPGRADE_ANNOTATION, "").strip(),
            groups=self.observed.of_kind(GROUP_KIND),
            token=self.token,
            statefulsets=self.observed.of_kind("StatefulSet"),
        )
        self._renderings.append((record, rendering))
        return rendering
