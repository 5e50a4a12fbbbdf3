"""Kill the operator before and after its writes and see that nothing but time was lost.

``python -m weft_operator_tests.kill_points`` kills at every write of a service's lives (weft_operator_tests.
kill_points_life). A reference trip without kills learns the writes; in some trips the operator is then killed before
them, in others after them, and points that were not met, because an earlier kill made their write needless, get further
trips. After every step the objects must become those of the reference, no object may have been made twice,
and at the end nothing is left.
"""

import argparse
import json
import math
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft_e2e.api_proxy import ProxiedRequest
from weft_operator_tests.api import USERS, RealApi, real_api
from weft_operator_tests.cluster import free_port
from weft_operator_tests.fake_sidecars import fake_sidecars
from weft_operator_tests.kill_points_life import NAME, NAMESPACE, SERVICE, Step, plans, roles, snapshot, trials
from weft_operator_tests.replicas import Replica
from weft_router_tests.conftest import RedisServer

STEP_S = 180.0
"""How long a step may take, and each kill in it may add ``KILL_S``."""
KILL_S = 30.0
ALIKE_S = 30.0
"""How long the objects may take to become those of the reference once the service says that nothing moves."""
POLL_S = 0.2
LIVES = ("plans", "trials", "roles")
PER_TRIP = 45
"""Kills in one trip: each delays what follows, and so makes some later writes needless."""
TRIPS = 3
"""How often points that were not met are tried again."""


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
    steps: Sequence[Step] = field(default_factory=plans)
    reference: "Trip | None" = None
    redis_url: str = ""
    heartbeats: bool = False
    """Whether the pods have sidecars that confirm their roles in Redis."""
    step: str = ""
    killed: list[Point] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """The writes that the API server carried out, by step."""
    states: dict[str, Any] = field(default_factory=dict)
    made: defaultdict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    """In which steps each object was made."""
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
        sidecars = fake_sidecars(self.api, NAMESPACE, NAME, self.redis_url) if self.heartbeats else nullcontext()
        replica = self._replica = self.api.replica("a", NAMESPACE, WEFT_REDIS_URL=self.redis_url).start(ready=False)
        try:
            with sidecars:
                for step in self.steps:
                    self._take(step, replica)
        finally:
            self.api.heal()
        self.seconds = time.monotonic() - begin
        return self

    def _take(self, step: Step, replica: Replica) -> None:
        self.step = step.name
        deadline = time.monotonic() + STEP_S + KILL_S * len(self.points)
        step.do(self.api)
        while self._revived(replica) or not step.over(self.api):
            assert time.monotonic() < deadline, (
                f"no end of the step {step.name!r} after {', '.join(map(str, self.killed)) or 'no kill'}: "
                f"{json.dumps(self.api.read(SERVICE), indent=1)[-3000:]}\n{replica.log.read_text()[-3000:]}"
            )
            time.sleep(POLL_S)
            if step.again:
                step.do(self.api)
        state = snapshot(self.api)
        alike = time.monotonic() + ALIKE_S
        while self.reference is not None and state != self.reference.states[step.name] and time.monotonic() < alike:
            self._revived(replica)
            time.sleep(POLL_S)
            state = snapshot(self.api)
        self.states[step.name] = state

    def _revived(self, replica: Replica) -> bool:
        """Return whether the operator had been killed; it is started again."""
        if not replica.ended:
            return False
        assert self.killed, f"the operator ended by itself: {replica.log.read_text()[-2000:]}"
        replica.start(ready=False)
        return True

    def _point(self, asked: ProxiedRequest, side: str) -> Point:
        write = written(asked)
        count = self._asked[self.step, write, side] = self._asked[self.step, write, side] + 1
        return Point(self.step, write, count, side)

    def _before(self, asked: ProxiedRequest) -> bool:
        if not asked.writes or asked.token != USERS["a"].token:
            return True
        return self._survives(self._point(asked, "before"))

    def _after(self, asked: ProxiedRequest) -> bool:
        if not asked.writes or asked.token != USERS["a"].token:
            return True
        if asked.served < 300:
            self.seen.append((self.step, written(asked)))
        if asked.served == 201:
            self.made[asked.resource, written(asked)].append(self.step)
        return self._survives(self._point(asked, "after"))

    def _survives(self, point: Point) -> bool:
        if point not in self.points or point in self.killed:
            return True
        self.killed.append(point)
        self._replica.send(signal.SIGKILL)
        self.told(f"kill {len(self.killed)}: {point}")
        return False


def written(asked: ProxiedRequest) -> str:
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
    # Of a pod that the operator deletes, the engine starts again.
    restarts = {(step, write) for step, write in trip.seen if write.startswith("DELETE pods/")}
    found += [f"{step}: {write}" for step, write in sorted(restarts.difference(reference.seen))]
    for (resource, write), steps in trip.made.items():
        usual = len(reference.made[resource, write])
        if resource != "events" and len(steps) > usual:
            found.append(f"{write} was made {len(steps)} times instead of {usual}: in {', '.join(steps)}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 1500 else f"{text[:1500]}…"


def reference_trip(api: RealApi, steps: Sequence[Step] = (), *, redis_url: str = "", heartbeats: bool = False) -> Trip:
    """Live a service's life without a kill."""
    have_namespace(api)
    return Trip(api, steps=steps or plans(), redis_url=redis_url, heartbeats=heartbeats).run()


def have_namespace(api: RealApi) -> None:
    """Make the namespace of all trips, if it is not there."""
    if api.read(f"api/v1/namespaces/{NAMESPACE}") is None:
        api.kube.run("create", "namespace", NAMESPACE)


def some(points: Iterable[Point], count: int, seed: int) -> list[Point]:
    """Return some points at random, the same ones for a seed."""
    return random.Random(seed).sample(sorted(points), count)


def share_of(points: Sequence[Point], share: str) -> list[Point]:
    """Return one of several equal shares of the points, "2/8" for the second of eight; all shares together are all.

    Each has its part of every step and of both sides.
    """
    number, _, count = share.partition("/")
    order = sorted(points, key=lambda point: (point.side, point))
    return order[int(number) - 1 :: int(count)]


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


def kill_all(reference: Trip, points: Sequence[Point]) -> int:
    """Kill at all points, and again at those that were not met; return how many differences there are."""
    failed = 0
    left = list(points)
    for _ in range(1 + TRIPS):
        for chosen in trips_of(left):
            trip = Trip(
                reference.api,
                chosen,
                steps=reference.steps,
                reference=reference,
                redis_url=reference.redis_url,
                heartbeats=reference.heartbeats,
                told=tell,
            ).run()
            wrong = differences(reference, trip)
            failed += len(wrong)
            left = [point for point in left if point not in trip.killed]
            tell(
                f"{chosen[0].side}: {len(trip.killed)} of {len(chosen)} points met in {trip.seconds:.0f} s, "
                f"{len(wrong)} differences"
            )
            for line in wrong:
                tell(f"  {line}")
    tell(f"{len(points) - len(left)} of {len(points)} points met, {failed} differences")
    for point in left:
        tell(f"  not met: {point}")
    return failed


def trips_of(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points as trips of one side and not too many kills each, spread over the whole life."""
    found = []
    for side in ("before", "after"):
        mine = [point for point in points if point.side == side]
        count = math.ceil(len(mine) / PER_TRIP)
        found += [share_of(mine, f"{number}/{count}") for number in range(1, count + 1)]
    return found


def main() -> int:
    """Kill at every write."""
    parser = argparse.ArgumentParser(description="SIGKILL the operator before and after every write")
    parser.add_argument("--points", type=int, default=0, help="only so many points at random (default: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=a_share, default="1/1", help="one of several equal shares, such as 1/8")
    parser.add_argument("--side", choices=("before", "after"), help="of the writes (default: both)")
    parser.add_argument("--life", choices=LIVES, help="one of the lives (default: all)")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, real_api(Path(folder)) as api:
        redis = RedisServer(free_port(), Path(folder))
        redis.start()
        try:
            for life in [arguments.life] if arguments.life else LIVES:
                steps = {"plans": plans(), "trials": trials(redis.url), "roles": roles()}[life]
                url = "" if life == "plans" else redis.url
                beats = life == "roles"
                before, reference = (reference_trip(api, steps, redis_url=url, heartbeats=beats) for _ in range(2))
                # What only one of two lives without kills has follows from time alone.
                both = set(points_of(before)) & set(points_of(reference))
                points = [point for point in both if life == "plans" or point.step != "create"]
                tell(f"{life}: {len(points)} kill points; references {before.seconds:.0f} s, {reference.seconds:.0f} s")
                wrong = differences(before, reference)
                failed += len(wrong)
                for line in wrong:
                    tell(f"  two lives without kills: {line}")
                points = share_of([point for point in points if arguments.side in (None, point.side)], arguments.share)
                if arguments.points:
                    points = some(points, min(arguments.points, len(points)), arguments.seed)
                failed += kill_all(reference, points)
        finally:
            redis.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
