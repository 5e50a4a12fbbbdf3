"""Rolling updates of pod templates: one serving worker of each role at a time. A change of the role is none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft_core.layouts import Role, duties_of
from weft_operator.api.objects import TEMPLATE_HASH_ANNOTATION, TOKEN_HASH_ANNOTATION, Manifest, annotations_of, name_of
from weft_operator.kube.diff import Action, Apply, first_difference
from weft_operator.render.statefulsets import without_role
from weft_operator.workers.fleet import role_of
from weft_operator.workers.readiness import WorkerState


@dataclass(frozen=True, slots=True)
class UpdateStage:
    """The actions of one pass, and the workers whose update waits for a later pass."""

    actions: tuple[Action, ...]
    waiting: frozenset[str]


def stage(actions: Iterable[Action], *, states: Sequence[WorkerState], statefulsets: Iterable[Manifest]) -> UpdateStage:
    """Return the actions to carry out now; ``states`` say which workers are ready at their current template.

    A serving worker is restarted only while all other workers of its role serve, so a template that does not start
    stops the rollout at its first worker; one of both roles waits for those of either. A worker gets another role with
    the template and serves in its old one until then, so it waits for the workers of both. Workers that do not serve
    are updated at once, because the update may repair them. A new internal token is rolled out to all at once, because
    pods with the old and the new one reject each other.
    """
    every = tuple(actions)
    live = {name_of(item): item for item in statefulsets}
    restarted = {action.key.name for action in every if _is_restart(action, live)}
    by_role: dict[Role, list[WorkerState]] = {}
    for state in states:
        duties = {*duties_of(state.worker.role)}
        if state.name in restarted and not state.worker.fixed:
            duties |= {*duties_of(role_of(live[state.name]))}
        for role in duties:
            by_role.setdefault(role, []).append(state)
    # These serve in neither role. A change of role that takes a restart starts with it.
    handing_over = {state.name for state in states if state.switching} - restarted
    waiting: set[str] = set()
    for mine in by_role.values():
        serving = sorted(state.name for state in mine if state.ready and state.name not in handing_over)
        due = [name for name in serving if name in restarted]
        waiting.update(due[1:] if len(serving) == len(mine) else due)
    return UpdateStage(
        actions=tuple(action for action in every if action.key.kind != "StatefulSet" or action.key.name not in waiting),
        waiting=frozenset(waiting),
    )


def _is_restart(action: Action, live: Mapping[str, Manifest]) -> bool:
    """Return whether an action restarts a worker without a change of its token."""
    found = live.get(action.key.name)
    if not isinstance(action, Apply) or action.key.kind != "StatefulSet" or found is None:
        return False
    wanted_template, found_template = (without_role(item["spec"]["template"]) for item in (action.manifest, found))
    token = _annotations(found_template).get(TOKEN_HASH_ANNOTATION)
    if token is not None and token != _annotations(wanted_template).get(TOKEN_HASH_ANNOTATION):
        return False
    # The hash covers removed fields too; the comparison covers changes by hand.
    wanted_hash = annotations_of(action.manifest).get(TEMPLATE_HASH_ANNOTATION)
    return (
        annotations_of(found).get(TEMPLATE_HASH_ANNOTATION) != wanted_hash
        or first_difference(wanted_template, found_template) is not None
    )


def _annotations(template: Mapping[str, Manifest]) -> Mapping[str, str]:
    metadata: Mapping[str, Mapping[str, str] | None] = template.get("metadata") or {}
    return metadata.get("annotations") or {}
