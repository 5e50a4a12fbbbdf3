"""Carry out the actions of a pass: the only place in which a pass changes objects."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import Manifest, ObjectKey, key_of
from weft_operator.api.worker_group import GROUP_KIND
from weft_operator.errors import ApiError, StalledError, TransientError
from weft_operator.kube.diff import Action, Delete, Scale
from weft_operator.render.companions import refusal

REFUSED_S = 60.0
"""Seconds until a refused Job, for example by a quota, is retried."""

MAX_NAMED = 5
"""Refused objects that a message names in addition to the first one."""

log = logging.getLogger(__name__)


class ApplyClient(Protocol):
    """The part of the API server that actions need."""

    async def carry_out(self, action: Action, *, owner_uid: str) -> Manifest | None:
        """Carry out one action; return the object as it is now, None when it is deleted."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The actions that were carried out, the objects whose spec they changed, and those that were refused."""

    done: tuple[Action, ...]
    changed: frozenset[ObjectKey]
    refusals: tuple[tuple[ObjectKey, StalledError | ApiError], ...]

    @property
    def failure(self) -> ConditionValue | None:
        """Return the first refusal in full, and the kinds and names of the others; None without any."""
        if not self.refusals:
            return None
        (key, error), *others = self.refusals
        reason, words = refusal(key, error)
        more = ", ".join(str(other) for other, _ in others[:MAX_NAMED])
        left = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
        return ConditionValue("False", reason, f"{key}: {words}{f'; refused as well: {more}{left}' if more else ''}")


async def apply_actions(
    client: ApplyClient, actions: Sequence[Action], *, owner_uid: str, existing: Iterable[Manifest]
) -> Applied:
    """Carry out actions in order on the objects of an owner, of which ``existing`` were observed.

    A refused object does not stop the others: a bad pod template must not prevent the removal of a lost worker. There
    are two exceptions. If the Secret with a new token is refused, templates with its hash are not applied, for they
    would change in every pass. If the ConfigMap with the rollout's ledger is refused, groups are not scaled.

    Raises:
        TransientError: the API server did not answer; the rest is left to the next pass.
    """
    generations = {key_of(item): _generation(item) for item in existing}
    done: list[Action] = []
    changed: set[ObjectKey] = set()
    refusals: list[tuple[ObjectKey, StalledError | ApiError]] = []
    for action in actions:
        if _must_wait(action, refused={key.kind for key, _ in refusals}):
            continue
        try:
            now = await client.carry_out(action, owner_uid=owner_uid)
        except TransientError:
            raise
        except (StalledError, ApiError) as error:
            log.warning("apply_failed", extra={"object": str(action.key), "error": str(error)})
            refusals.append((action.key, error))
            continue
        log.info("carried_out", extra={"object": str(action.key), "reason": action.reason})
        done.append(action)
        if now is None or _generation(now) != generations.get(action.key):
            changed.add(action.key)  # labels and annotations leave the generation, and pods, as they are
    return Applied(tuple(done), frozenset(changed), tuple(refusals))


def _must_wait(action: Action, *, refused: set[str]) -> bool:
    if "ConfigMap" in refused and isinstance(action, Scale):
        return True
    return "Secret" in refused and not isinstance(action, Delete) and action.key.kind in (GROUP_KIND, "Deployment")


def _generation(manifest: Manifest) -> int:
    return int(manifest["metadata"].get("generation", 0))
