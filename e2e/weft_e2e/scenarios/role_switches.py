"""Change the roles of real pods under load, through the operator, which is killed meanwhile if asked."""

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle

from weft_core.layouts import WORKER_ROLES, WorkerRole
from weft_e2e import kube
from weft_e2e.checks import check_no_failures, check_ready
from weft_e2e.checks.drains import check_no_lost_sessions
from weft_e2e.checks.failed import CheckFailed
from weft_e2e.demo.settings import SYSTEM_NAMESPACE
from weft_e2e.kube import Object
from weft_e2e.metrics import growth
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.replay.records import RoundRecord
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.background import Background, background_sessions
from weft_e2e.scenarios.manifests import changed, small_service
from weft_e2e.scenarios.role_changes import AT_ONCE_S, RoleChange
from weft_e2e.scenarios.role_watch import RoleWatch, watching_roles
from weft_e2e.service import Service, component_of
from weft_e2e.waiting import until

Says = Callable[[str], None]
Roles = Mapping[WorkerRole, int]

DRAIN_S = 5.0
READY_S = 240.0
SERVED_S = 90.0
TAKEOVER_S = 60.0
"""From the kill of an operator to changed roles: another one waits for the end of the Lease, at most 15 s."""
LEASE = "weft-operator"
RATIOS: tuple[Roles, ...] = (
    {"prefill": 1, "decode": 3},
    {"prefill": 1, "decode": 2, "both": 1},
    {"prefill": 2, "decode": 2},
    {"prefill": 3, "decode": 1},
    {"prefill": 2, "decode": 2},
)
"""Numbers of workers by role, one after the other: each differs from the one before in one worker's role."""
LONG = (PlannedRound(400, 12, 0.0), *(PlannedRound(80, 12, 0.4) for _ in range(11)))
SHORT = (PlannedRound(150, 8, 0.0), PlannedRound(60, 8, 0.3), PlannedRound(40, 6, 0.3))


@dataclass(frozen=True, slots=True)
class SwitchResults:
    """What was seen over all changes."""

    changes: tuple[RoleChange, ...]
    records: tuple[RoundRecord, ...]
    transcripts: tuple[SessionTranscript, ...]
    moved: float
    """Sessions that other workers took over."""
    kills: int = 0


def switching_service(name: str = "switch") -> Object:
    """Return a service of two workers of each role, on all GPUs that it may have; people set its roles."""
    manifest = small_service(name, prefill=(2, 2), decode=(2, 2), gpus=4)
    manifest = changed(manifest, "spec.rollout.drainTimeout", f"{DRAIN_S:g}s")
    manifest = changed(manifest, "spec.planning.mode", "Off")
    manifest["spec"]["capacity"]["pools"][0]["degrees"] = [1]
    return manifest


def set_roles(service: Service, roles: Roles) -> None:
    """Have so many workers of each role in the service's only group."""
    (group,) = kube.items(service.kube, "workergroups", namespace=service.namespace, selector=service.selector)
    spec = {"replicas": sum(roles.values()), "roles": {role: roles.get(role, 0) for role in WORKER_ROLES}}
    words = ("patch", "workergroup", group["metadata"]["name"], "-n", service.namespace, "--type=merge", "-p")
    service.kube.kubectl(*words, json.dumps({"spec": spec}))


def wait_roles(seen: RoleWatch, roles: Roles, *, timeout_s: float) -> None:
    """Wait until workers have confirmed these roles."""
    until(
        lambda: seen.confirmed == roles, what=f"workers of {_words(roles)}", timeout_s=timeout_s, every_s=0.05,
        last=lambda: f"confirmed: {_words(seen.confirmed)}",
    )  # fmt: skip


def containers(service: Service) -> dict[str, tuple[str, ...]]:
    """Return what of the worker pods would change with a restart: UIDs, IDs of containers, and counts of restarts."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            *(
                f"{one['name']} {one.get('containerID', '')} {one['restartCount']}"
                for kind in ("initContainerStatuses", "containerStatuses")
                for one in pod["status"].get(kind) or ()
            ),
        )
        for pod in service.pods()
        if component_of(pod) in WORKER_ROLES
    }


def run(service: Service, count: int, *, kills: int = 0, seed: int = 1, say: Says = lambda _: None) -> SwitchResults:
    """Change roles so many times under load and check what was seen; in the first ``kills`` the operator is killed.

    The service is one of ``switching_service``, and Ready.

    Raises:
        CheckFailed: a check says what was expected and what was found.
    """
    chance = random.Random(seed)  # noqa: S311 - moments of kills, not keys
    before, pages = containers(service), service.metrics_pages()
    with service.reachable(run=f"roles-{time.time():.0f}-") as target, watching_roles(service) as seen:
        set_roles(service, RATIOS[-1])  # as the last change leaves it, and most first ones find it
        wait_roles(seen, RATIOS[-1], timeout_s=READY_S)
        seen.changes.clear()
        load = Background(target, lanes=6, rounds=LONG, others=(SHORT,), round_deadline_s=60.0)
        with background_sessions(load):
            load.wait_served(12, timeout_s=SERVED_S)
            for number, roles in zip(range(1, count + 1), cycle(RATIOS), strict=False):
                leads = leader(service) if number <= kills else ""
                start = time.monotonic()
                set_roles(service, roles)
                killed = ""
                if leads:
                    time.sleep(chance.uniform(0.0, 1.0))
                    kill(service, leads)
                    killed = f", after {time.monotonic() - start:.1f} s of it {leads} was killed"
                wait_roles(seen, roles, timeout_s=DRAIN_S + AT_ONCE_S + TAKEOVER_S)
                say(f"{number:3d} {_words(roles)} in {time.monotonic() - start:.1f} s{killed}")
            load.wait_served(12, timeout_s=SERVED_S)
    moved = growth(pages, service.metrics_pages()).total("weft_router_sessions_moved_total")
    check_ready_operator(service)
    found = SwitchResults(tuple(seen.changes), tuple(load.records), tuple(load.transcripts), moved, kills)
    check_no_failures(found.records)
    check_no_lost_sessions(found.transcripts)
    check_changes(found, count, timed=not kills)
    if (after := containers(service)) != before:
        raise CheckFailed(f"pods or containers are others than before: {before} {after}")
    return found


def check_changes(found: SwitchResults, count: int, *, timed: bool) -> None:
    """Check the changes themselves: their number, where ``timed`` their times, and that sessions moved."""
    if len(found.changes) != count:
        raise CheckFailed(f"{len(found.changes)} workers changed their role, {count} should have: {found.changes}")
    for one in found.changes if timed else ():
        most = AT_ONCE_S + (DRAIN_S if one.hands_over else 0.0)
        if one.seconds > most:
            words = f"{one.worker} took {one.seconds:.1f} s from {one.before} to {one.after}, {most:g} s at most"
            raise CheckFailed(words)
    if not found.moved and any(one.hands_over for one in found.changes):
        raise CheckFailed("no session moved with its state, though workers ceased to decode")


def leader(service: Service) -> str:
    """Return the pod of the operator that leads, which may be about to."""

    def there() -> str | None:
        lease = kube.get(service.kube, "lease", LEASE, namespace=SYSTEM_NAMESPACE)
        holder = str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
        gone = not holder or kube.get(service.kube, "pod", holder, namespace=SYSTEM_NAMESPACE) is None
        return None if gone else holder

    return until(there, what="an operator that leads", timeout_s=TAKEOVER_S)


def kill(service: Service, operator: str) -> None:
    """End an operator without a chance to tidy up."""
    words = ("delete", "pod", operator, "-n", SYSTEM_NAMESPACE, "--grace-period=0", "--force", "--wait=false")
    service.kube.kubectl(*words)


def check_ready_operator(service: Service) -> None:
    """Wait until all operators are there again, for whoever comes next."""
    words = ("rollout", "status", "deployment", "-l", "app.kubernetes.io/component=operator", "-n", SYSTEM_NAMESPACE)
    service.kube.kubectl(*words, "--timeout=120s", timeout=150)


def apply(client: kube.Kube, namespace: str) -> Service:
    """Apply the service and wait until it is Ready."""
    manifest = switching_service()
    client.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    service = Service(client, namespace, manifest["metadata"]["name"])
    check_ready(service, timeout_s=READY_S)
    return service


def _words(roles: Roles) -> str:
    return ", ".join(f"{roles[role]} {role}" for role in WORKER_ROLES if roles.get(role)) or "no role"
