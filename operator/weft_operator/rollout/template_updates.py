"""Decide which workers get a new pod template now: of each role one serving worker at a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft_operator.api.objects import TEMPLATE_HASH_ANNOTATION, TOKEN_HASH_ANNOTATION, Manifest, annotations_of, name_of
from weft_operator.kube.diff import Action, Apply, first_difference
from weft_operator.render.inputs import ROLES
from weft_operator.workers.readiness import WorkerState


@dataclass(frozen=True, slots=True)
class UpdateStage:
    """The actions of one pass, and the workers whose update is left to a later one."""

    actions: tuple[Action, ...]
    waiting: frozenset[str]


def stage(actions: Iterable[Action], *, states: Sequence[WorkerState], statefulsets: Iterable[Manifest]) -> UpdateStage:
    """Return what to do now; ``states`` tell who is ready at the template that it has.

    A serving worker is restarted only while all other workers of its role serve, so a template that does not start
    stops the rollout at its first worker. Workers that do not serve are updated at once: nothing is lost by it, and
    the update may be what mends them. So at least one worker moves unless one that is not to be updated is down.
    A new internal token goes to all at once, because holders of the old and the new one refuse each other.
    """
    every = tuple(actions)
    live = {name_of(item): item for item in statefulsets}
    restarted = {action.key.name for action in every if _is_restart(action, live)}
    waiting: set[str] = set()
    for role in ROLES:
        mine = [state for state in states if state.worker.role == role]
        serving = sorted(state.name for state in mine if state.ready)
        due = [name for name in serving if name in restarted]
        waiting.update(due[1:] if len(serving) == len(mine) else due)
    return UpdateStage(
        actions=tuple(action for action in every if action.key.kind != "StatefulSet" or action.key.name not in waiting),
        waiting=frozenset(waiting),
    )


def _is_restart(action: Action, live: Mapping[str, Manifest]) -> bool:
    """Tell whether an action would restart a worker that has the same token as all others will have."""
    found = live.get(action.key.name)
    if not isinstance(action, Apply) or action.key.kind != "StatefulSet" or found is None:
        return False
    wanted_template, found_template = action.manifest["spec"]["template"], found["spec"]["template"]
    token = _annotations(found_template).get(TOKEN_HASH_ANNOTATION)
    if token is not None and token != _annotations(wanted_template).get(TOKEN_HASH_ANNOTATION):
        return False
    # The hash tells what is no longer wanted too; the comparison tells what somebody changed by hand.
    wanted_hash = annotations_of(action.manifest).get(TEMPLATE_HASH_ANNOTATION)
    return (
        annotations_of(found).get(TEMPLATE_HASH_ANNOTATION) != wanted_hash
        or first_difference(wanted_template, found_template) is not None
    )


def _annotations(template: Mapping[str, Manifest]) -> Mapping[str, str]:
    metadata: Mapping[str, Mapping[str, str] | None] = template.get("metadata") or {}
    return metadata.get("annotations") or {}
