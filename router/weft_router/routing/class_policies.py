"""Hold the policy of every class of requests, and let a new configuration take over between two requests.

A round asks for its class's policy once and keeps it to its end, so nothing is dropped or decided half by one and half
by the other when the service changes. What was learned about predictions goes on.
"""

from collections.abc import Callable, Mapping
from time import monotonic

from weft_core.cost import CostProfile
from weft_core.policies.slices import Slicing
from weft_core.policies.trust import Trust
from weft_core.slo import Slo
from weft_router.config import PLAIN_CLASS, QosClass, QosConfig, RouterConfig, RoutingConfig, SessionClass
from weft_router.routing.policy import ClassRules, RoutingPolicy


class ClassPolicies:
    """The policy of each class of a service."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        profile: CostProfile,
        salt: str,
        pools: Mapping[str, CostProfile] | None = None,
        sliceable: bool = False,
        before: "ClassPolicies | None" = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Build them; ``sliceable`` says that this engine's local prefills can be sliced.

        ``before`` are those of the configuration so far: what was observed of predictions is kept.
        """
        self.trust: Trust = before.trust if before is not None else Trust(ttft_slo=config.slo.ttft)
        slicing = slicing_of(config.routing) if sliceable else None
        self._of = {
            name: RoutingPolicy(
                one.routing, profile=profile, slo=Slo(ttft_s=one.slo.ttft, itl_s=one.slo.itl), salt=f"{salt}:{name}",
                pools=pools, slicing=slicing, step_tokens=config.routing.step_tokens,
                rules=rules_of(one, config.qos), trust=self.trust,
                before=before.of(name) if before is not None else None, clock=clock,
            )
            for name, one in config.session_classes().items()
        }  # fmt: skip
        self._plain = self._of[PLAIN_CLASS]
        self.strictest_itl_s = min(one.slo.itl for one in config.session_classes().values())
        """The strictest ITL SLO of all classes."""

    @property
    def trusted(self) -> bool:
        """Return whether predictions were right lately."""
        return self._plain.trusted

    def of(self, name: str) -> RoutingPolicy:
        """Return the policy of a class; of one that a newer configuration named, the plain one."""
        return self._of.get(name, self._plain)


def slicing_of(routing: RoutingConfig) -> Slicing | None:
    """Return how local prefills are sliced, None when they shall not be."""
    slices = routing.slices
    if slices.mode == "off":
        return None
    least = max(slices.least, slices.block)
    return Slicing(
        least=least,
        most=max(4096, least),
        share=routing.slice_share,
        block=slices.block,
        overhead_s=slices.overhead_seconds,
    )


def rules_of(one: SessionClass, qos: QosConfig) -> ClassRules:
    """Return what a class may expect."""
    own: QosClass = one.qos
    return ClassRules(
        priority=own.priority,
        tolerance=own.tolerance if own.early_rejection else None,
        local_only=own.local_only,
        busy=qos.pressure.busy,
    )
