"""Worker groups as the service controller sees them: desired and actual workers, from spec and status. Pure.

A group whose workers' roles can change is seen as one group for each role, so that rollouts count them apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft_core.layouts import WORKER_ROLES, Role, duties_of
from weft_core.parallelism import Degree, degree_from_json, degree_to_json
from weft_core.plan import PlannedGroup, WorkerRole
from weft_operator.api.objects import Manifest, is_terminating, name_of
from weft_operator.workers.fleet import Worker, parse_name
from weft_operator.workers.readiness import WorkerState
from weft_operator.workers.roles import group_of, is_role_key, role_key, split_roles


@dataclass(frozen=True, slots=True)
class GroupView:
    """The observed state of one WorkerGroup, or of its workers of one role.

    ``name`` is its key (weft_operator.workers.roles.group_of has the WorkerGroup's name).
    """

    name: str
    uid: str
    role: WorkerRole
    degree: Degree
    pool: str
    revision: str
    asked: int | None
    """Workers that spec wants; None before it is set."""
    current: bool
    """Whether the status is about the newest spec."""
    rows: tuple[Mapping[str, Any], ...]
    """Its workers, as its status lists them."""
    failure: tuple[str, str] | None
    """Reason and message of an object that was refused."""
    manifest: Manifest

    @property
    def place(self) -> tuple[WorkerRole, Degree, str]:
        """Return role, degree and pool."""
        return self.role, self.degree, self.pool

    @property
    def group(self) -> str:
        """Return the name of the WorkerGroup."""
        return group_of(self.name)

    @property
    def staying(self) -> tuple[Mapping[str, Any], ...]:
        """Return the rows of workers that stay."""
        return tuple(row for row in self.rows if not row.get("draining") and not row.get("lost"))

    @property
    def draining(self) -> tuple[Mapping[str, Any], ...]:
        """Return the rows of workers that drain and are not lost."""
        return tuple(row for row in self.rows if row.get("draining"))

    @property
    def sessions(self) -> int | None:
        """Return the number of sessions bound to its workers; None without heartbeats."""
        counts = [row["sessions"] for row in self.rows if row.get("sessions") is not None]
        return sum(counts) if counts else None

    @property
    def empty(self) -> bool:
        """Return whether a group with 0 replicas has no workers but lost ones."""
        return self.asked == 0 and self.current and not self.staying and not self.draining


def _view_of(manifest: Manifest, role: WorkerRole, *, fixed: bool) -> GroupView:
    """Return the view of the workers of one role of a WorkerGroup."""
    spec, status = manifest["spec"], manifest.get("status") or {}
    current = int(status.get("observedGeneration") or 0) >= int(manifest["metadata"].get("generation", 0))
    progressing = next((item for item in status.get("conditions") or () if item["type"] == "Progressing"), None)
    failed = progressing is not None and progressing["status"] == "False" and progressing["reason"] != "UpToDate"
    asked = None if spec.get("replicas") is None else int(spec["replicas"])
    if asked is not None and not fixed:
        asked = split_roles({one: int((spec.get("roles") or {}).get(one, 0)) for one in WORKER_ROLES}, asked)[role]
    return GroupView(
        name=name_of(manifest) if fixed else role_key(name_of(manifest), role),
        uid=str(manifest["metadata"].get("uid", "")),
        role=role,
        degree=degree_from_json(spec["degree"]),
        pool=str(spec.get("pool", "")),
        revision=str(spec["revision"]),
        asked=asked,
        current=current,
        rows=tuple(row for row in status.get("workers") or () if fixed or row.get("role", "decode") == role),
        failure=(progressing["reason"], progressing.get("message", "")) if failed and progressing is not None else None,
        manifest=manifest,
    )


def views_of(manifests: Iterable[Manifest]) -> tuple[GroupView, ...]:
    """Return the views of all groups that are not being deleted, by name; three where roles can change."""
    found: list[GroupView] = []
    for item in manifests:
        if is_terminating(item):
            continue
        fixed: WorkerRole | None = item["spec"].get("role")
        roles = WORKER_ROLES if fixed is None else (fixed,)
        found += [_view_of(item, role, fixed=fixed is not None) for role in roles]
    return tuple(sorted(found, key=lambda view: view.name))


@dataclass(frozen=True, slots=True)
class DesiredGroup:
    """One group of the plan: its key (the name of its WorkerGroup, and the role where that can change) and workers."""

    name: str
    group: PlannedGroup

    @property
    def place(self) -> tuple[WorkerRole, Degree, str]:
        """Return role, degree and pool."""
        return self.group.role, self.group.degree, self.group.pool


def states_of(
    service: str, wanted: Sequence[DesiredGroup], views: Sequence[GroupView], *, changed: frozenset[str]
) -> tuple[WorkerState, ...]:
    """Return the state of every planned worker; ``changed`` names groups whose spec was just changed.

    A planned worker that does not exist yet is represented by a serving worker of a group that is being replaced, as
    long as there is one of the role, because that one serves its requests. One that changes its role is not ready.
    """
    known = {view.name: view for view in views}
    new = {item.name for item in wanted}
    spare: dict[WorkerRole, list[Mapping[str, Any]]] = {}
    for view in views:
        if view.name not in new:
            spare.setdefault(view.role, []).extend(row for row in view.staying if _serves(row))
    states: list[WorkerState] = []
    for item in wanted:
        own = known.get(item.name)
        current = own is not None and own.current and group_of(item.name) not in changed
        mine = [_state(service, item, row, current=current) for row in (own.staying if own is not None else ())]
        # Workers beyond the plan are about to be removed, but it is not known yet which ones.
        mine = sorted(mine, key=lambda state: (not state.ready, not state.waits))[: item.group.replicas]
        for number in range(len(mine), item.group.replicas):
            row = spare[item.group.role].pop() if spare.get(item.group.role) else None
            name = str(row["name"]) if row is not None else f"{group_of(item.name)}[{number}]"
            mine.append(WorkerState(_worker(item, number), name, ready=False, waits=row is not None))
        states.extend(sorted(mine, key=lambda state: state.name))
    return tuple(states)


def served_duties(views: Sequence[GroupView]) -> frozenset[Role]:
    """Return the duties of which a worker serves, in a group of the plan or in one that is replaced."""
    return frozenset(
        duty for view in views if any(_serves(row) for row in view.staying) for duty in duties_of(view.role)
    )


def leaving_of(wanted: Sequence[DesiredGroup], views: Sequence[GroupView]) -> tuple[str, ...]:
    """Return the names of the workers that drain or are to be removed.

    For a group that keeps some of its workers, only their number is known before it chooses them.
    """
    keeps = {item.name: item.group.replicas for item in wanted}
    names: list[str] = []
    for view in views:
        kept, beyond = keeps.get(view.name, 0), len(view.staying) - keeps.get(view.name, 0)
        names += [str(row["name"]) for row in (view.draining if kept else (*view.staying, *view.draining))]
        if kept and beyond > 0:
            names.append(f"{beyond} of {view.group}")
    return tuple(sorted(names))


def lost_of(views: Sequence[GroupView]) -> tuple[str, ...]:
    """Return the names of lost workers whose pods still exist."""
    return tuple(sorted(str(row["name"]) for view in views for row in view.rows if row.get("lost")))


def _serves(row: Mapping[str, Any]) -> bool:
    return bool(row.get("ready") or row.get("outdated")) and not row.get("switching")


def _state(service: str, item: DesiredGroup, row: Mapping[str, Any], *, current: bool) -> WorkerState:
    name, switching = str(row["name"]), bool(row.get("switching"))
    return WorkerState(
        parse_name(service, name, item.group.pool, item.group.role) or _worker(item, 0),
        name,
        ready=current and bool(row.get("ready")) and not switching,
        trouble=str(row.get("trouble") or ""),
        unschedulable=bool(row.get("unschedulable")),
        waits=(bool(row.get("outdated")) or (not current and bool(row.get("ready")))) and not switching,
        switching=switching,
    )


def _worker(item: DesiredGroup, index: int) -> Worker:
    return Worker(item.group.role, item.group.degree, index, item.group.pool, fixed=not is_role_key(item.name))


def rows_of(
    wanted: Sequence[DesiredGroup], views: Sequence[GroupView], states: Sequence[WorkerState]
) -> list[dict[str, Any]]:
    """Return ``status.groups``: the groups of the plan, then those that are being emptied."""
    known = {view.name: view for view in views}
    rows = []
    for item in wanted:
        mine = [state for state in states if (state.worker.role, state.worker.degree, state.worker.pool) == item.place]
        rows.append(
            _group_row(item.place, item.group.replicas, sum(state.ready for state in mine), known.get(item.name))
        )
    new = {item.name for item in wanted}
    rows += [_group_row(view.place, 0, 0, view) for view in views if view.name not in new and not view.empty]
    return rows


def _group_row(
    place: tuple[WorkerRole, Degree, str], desired: int, ready: int, view: GroupView | None
) -> dict[str, Any]:
    role, degree, pool = place
    row: dict[str, Any] = {
        "role": role,
        "degree": degree_to_json(degree),
        "pool": pool,
        "desired": desired,
        "ready": ready,
    }
    if view is not None:
        row |= {"name": view.group, "draining": len(view.draining)}
        if view.sessions is not None:
            row["sessions"] = view.sessions
    return row
