"""The answer that there is no plan: a reason for a condition, what binds, and what would do."""

from collections.abc import Mapping

from weft_core.cost import CostProfile
from weft_core.parallelism import Degree
from weft_core.shortfall import Constraint, Remedy, Shortfall
from weft_planner.request.capacity import Pool

BINDING: Mapping[str, Constraint] = {
    "TooFewGpus": "gpus",
    "BoundsUnsatisfiable": "bounds",
    "NotPlaceable": "node-shape",
    "NoPoolForRole": "roles",
    "NoPairOfDegrees": "engine",
    "OverBudget": "budget",
    "ModelDoesNotFit": "memory",
    "ContextDoesNotFit": "memory",
}
"""What each reason says about the constraint that binds; the others are about the profile."""


class Infeasible(Exception):  # noqa: N818 - an answer, not a fault
    """No layout is possible; ``reason`` is a CamelCase word for a status condition."""

    def __init__(
        self, reason: str, message: str, *, remedies: tuple[Remedy, ...] = (), least_gpus: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.shortfall = Shortfall(
            binding=BINDING.get(reason, "profile"), message=message, least_gpus=least_gpus, remedies=remedies
        )


def degrees_of(pool: Pool, profile: CostProfile, max_model_len: int) -> list[Degree]:
    """Return the degrees a pool can run: on whole nodes, in the profile, with KV room for the longest context."""
    return sorted(
        n for n in set(pool.usable_degrees) if n in profile.degrees and profile.longest_context(n) >= max_model_len
    )
