"""Kill the operator before and after its writes and see that nothing but time was lost.

``python -m weft_operator_tests.kill_points`` kills at every write of a service's life: create, plan anew, change
degrees, delete. A reference trip without kills learns the writes; in one trip the operator is then killed before each
of them, in another one after each. After every step the objects must be those of the reference, no object may have
been made twice, and at the end nothing is left.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft_e2e.api_proxy import Asked
from weft_operator.manifest import HASH_ANNOTATION, Manifest
from weft_operator_tests.api import USERS, RealApi, real_api, small_service
from weft_operator_tests.replicas import Replica

NAMESPACE, NAME = "killed", "demo"
STEP_S = 180.0
"""How long a step may take, and each kill in it may add ``KILL_S``."""
KILL_S = 30.0
KINDS = (
    "apis/apps/v1/statefulsets",
    "apis/apps/v1/deployments",
    "apis/apps/v1/controllerrevisions",
    "api/v1/services",
    "api/v1/configmaps",
    "api/v1/secrets",
    "api/v1/serviceaccounts",
    "apis/policy/v1/poddisruptionbudgets",
    "apis/networking.k8s.io/v1/networkpolicies",
    "apis/weft.dev/v1alpha1/workergroups",
)
SERVICE = f"apis/weft.dev/v1alpha1/namespaces/{NAMESPACE}/disagginferenceservices/{NAME}"

STEPS: tuple[tuple[str, Mapping[str, Any] | None], ...] = (
    ("create", {}),
    ("plan anew", {"workload": {"arrivalRate": 1.5}}),
    ("change degrees", {"workload": {"arrivalRate": 1.5}, "degrees": [4]}),
    ("delete", None),
)


@dataclass(frozen=True, order=True, slots=True)
class Point:
    """The n-th write of one kind to one object in one step, and on which side of it the kill is."""

    step: str
    write: str
    count: int
    side: str

    def __str__(self) -> str:
        return f"{self.side} {self.write} #{self.count} of {self.step}"


@dataclass
class Trip:
    """One life of a service with kills; what it found after each step."""

    api: RealApi
    points: Collection[Point] = ()
    step: str = ""
    killed: list[Point] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """The writes that the API server carried out, by step."""
    states: dict[str, Any] = field(default_factory=dict)
    made: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    told: Callable[[str], object] = lambda _line: None
    """Called with each kill."""
    _asked: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def run(self) -> "Trip":
        """Live it.

        Raises:
            AssertionError: a step came to no end.
        """
        begin = time.monotonic()
        self.api.proxy.before, self.api.proxy.after = self._before, self._after
        replica = self._replica = self.api.replica("a", NAMESPACE).start(ready=False)
        try:
            for self.step, change in STEPS:
                if change is None:
                    self.api.send("DELETE", SERVICE)
                    self._until(lambda: not rest(self.api), replica, "an empty namespace")
                else:
                    ask(self.api, change)
                    self._until(self._settled, replica, "a service at rest")
                    self.states[self.step] = snapshot(self.api)
        finally:
            self.api.heal()
        self.seconds = time.monotonic() - begin
        return self

    def _until(self, holds: Callable[[], bool], replica: Replica, what: str) -> None:
        deadline = time.monotonic() + STEP_S + KILL_S * len(self.points)
        while not holds():
            if replica.process is not None and replica.process.poll() is not None:
                assert self.killed, f"the operator ended by itself: {replica.log.read_text()[-2000:]}"
                replica.start(ready=False)
            assert time.monotonic() < deadline, (
                f"no {what} in the step {self.step!r} after {', '.join(map(str, self.killed)) or 'no kill'}: "
                f"{json.dumps(self.api.read(SERVICE), indent=1)[-3000:]}\n{replica.log.read_text()[-3000:]}"
            )
            time.sleep(0.3)

    def _settled(self) -> bool:
        service = self.api.read(SERVICE) or {}
        status = service.get("status") or {}
        conditions = {item["type"]: item for item in status.get("conditions") or ()}
        ready = conditions.get("Ready", {})
        generation = service.get("metadata", {}).get("generation")
        current = ready.get("status") == "True" and ready.get("observedGeneration") == generation
        moving = conditions.get("Progressing", {}).get("status") == "True"
        pods = self.api.read(f"api/v1/namespaces/{NAMESPACE}/pods") or {}
        leaving = any(item["metadata"].get("deletionTimestamp") for item in pods.get("items") or ())
        return bool(current and not moving and not leaving)

    def _point(self, asked: Asked, side: str) -> Point:
        write = written(asked)
        count = self._asked[self.step, write, side] = self._asked[self.step, write, side] + 1
        return Point(self.step, write, count, side)

    def _before(self, asked: Asked) -> bool:
        if not asked.writes or asked.token != USERS["a"].token:
            return True
        return self._survives(self._point(asked, "before"))

    def _after(self, asked: Asked) -> bool:
        if not asked.writes or asked.token != USERS["a"].token:
            return True
        if asked.served < 300:
            self.seen.append((self.step, written(asked)))
        if asked.served == 201:
            self.made[asked.resource, written(asked)] += 1
        return self._survives(self._point(asked, "after"))

    def _survives(self, point: Point) -> bool:
        if point not in self.points or point in self.killed:
            return True
        self.killed.append(point)
        process = self._replica.process
        if process is not None:
            process.kill()
        self.told(f"kill {len(self.killed)}: {point}")
        return False


def ask(api: RealApi, change: Mapping[str, Any]) -> None:
    """Apply the service as a user does, with what a step changes."""
    body = small_service(NAMESPACE, NAME)
    body["spec"]["workload"] |= change.get("workload", {})
    body["spec"]["capacity"]["pools"][0]["degrees"] = change.get("degrees", [2])
    api.send("PATCH", f"{SERVICE}?fieldManager=user&force=true", body)


def rest(api: RealApi) -> list[str]:
    """Return what there is of the service."""
    left = [f"dis/{NAME}"] if api.read(SERVICE) else []
    for kind in (*KINDS, "api/v1/pods"):
        left += [f"{kind}/{item['metadata']['name']}" for item in api.items(kind, NAMESPACE)]
    return [name for name in left if name != "api/v1/serviceaccounts/default"]


def written(asked: Asked) -> str:
    """Return what a write is, the same in every trip: its method, kind and object."""
    name = asked.path.rstrip("/").partition(f"/namespaces/{NAMESPACE}/")[2]
    if asked.method == "POST":
        reason = (asked.content or {}).get("reason", "")
        name = f"{name}/{reason or (asked.content or {}).get('metadata', {}).get('name', '')}"
    return f"{asked.method} {name}"


def points_of(trip: Trip) -> list[Point]:
    """Return both sides of every write of a trip."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for step, write in trip.seen:
        counts[step, write] += 1
        found += [Point(step, write, counts[step, write], side) for side in ("before", "after")]
    return found


def snapshot(api: RealApi) -> dict[str, Any]:
    """Return all objects of the service with what differs between two lives masked."""
    found = {}
    for kind in KINDS:
        for item in api.items(kind, NAMESPACE):
            if kind.endswith("controllerrevisions") and item["metadata"].get("labels", {}).get("weft.dev/worker"):
                continue  # the StatefulSet controller's own
            found[f"{kind}/{item['metadata']['name']}"] = _masked(item)
    service = api.read(SERVICE) or {}
    conditions = (service.get("status") or {}).get("conditions") or ()
    found["conditions"] = {item["type"]: (item["status"], item["reason"]) for item in conditions}
    return found


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _masked(item: Manifest) -> Any:
    kept = {key: value for key, value in item.items() if key not in ("status", "metadata", "apiVersion", "kind")}
    metadata = item["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != HASH_ANNOTATION}
    kept["metadata"] = {"labels": metadata.get("labels") or {}, "annotations": annotations}
    for volatile in ("clusterIP", "clusterIPs"):
        (kept.get("spec") or {}).pop(volatile, None)
    return json.loads(_UID.sub("UID", _TIME.sub("TIME", json.dumps(kept, sort_keys=True))))


def differences(reference: Trip, trip: Trip) -> list[str]:
    """Return how a trip's ends differ from the reference's, and what it made more often than once."""
    found = []
    for step, state in reference.states.items():
        other = trip.states.get(step, {})
        found += [
            f"{step}: {name}: {_short(state.get(name))} != {_short(other.get(name))}"
            for name in sorted(state.keys() | other.keys())
            if state.get(name) != other.get(name)
        ]
    for (resource, write), count in trip.made.items():
        if resource != "events" and count > reference.made[resource, write]:
            found.append(f"{write} was made {count} times instead of {reference.made[resource, write]}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 1500 else f"{text[:1500]}…"


def reference_trip(api: RealApi) -> Trip:
    """Live a service's life without a kill."""
    have_namespace(api)
    return Trip(api).run()


def have_namespace(api: RealApi) -> None:
    """Make the namespace of all trips, if it is not there."""
    if api.read(f"api/v1/namespaces/{NAMESPACE}") is None:
        api.kube.run("create", "namespace", NAMESPACE)


def some(points: Iterable[Point], count: int, seed: int) -> list[Point]:
    """Return some points at random, the same ones for a seed."""
    return random.Random(seed).sample(sorted(points), count)


def share_of(points: Sequence[Point], share: str) -> list[Point]:
    """Return one of several equal shares of the points, "2/8" for the second of eight; all shares together are all."""
    number, _, count = share.partition("/")
    return sorted(points)[int(number) - 1 :: int(count)]


def a_share(text: str) -> str:
    """Return a share as it is written on the command line.

    Raises:
        ArgumentTypeError: it is none.
    """
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: give a share such as 1/8")
    return text


def tell(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Kill at every write."""
    parser = argparse.ArgumentParser(description="SIGKILL the operator before and after every write")
    parser.add_argument("--points", type=int, default=0, help="only so many points at random (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=a_share, default="1/1", help="one of several equal shares, such as 1/8")
    parser.add_argument("--side", choices=("before", "after"), help="of the writes (default: both)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, real_api(Path(folder)) as api:
        reference = reference_trip(api)
        points = points_of(reference)
        tell(f"{len(points)} kill points; reference {reference.seconds:.0f} s")
        points = share_of(points, arguments.share)
        if arguments.points:
            points = some(points, arguments.points, arguments.seed)
        failed = 0
        for side in [arguments.side] if arguments.side else ["before", "after"]:
            chosen = [point for point in points if point.side == side]
            trip = Trip(api, chosen, told=tell).run()
            wrong = differences(reference, trip)
            failed += len(wrong)
            tell(f"{side}: {len(trip.killed)} kills in {trip.seconds:.0f} s, {len(wrong)} differences")
            for line in wrong:
                tell(f"  {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
