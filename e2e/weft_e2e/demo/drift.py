"""Let a service's traffic change, and show live what the operator makes of it."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from weft_e2e.demo.scene import Drifted, ReplanTimeline, Rounds, Story
from weft_e2e.demo.screen import screen
from weft_e2e.demo.settings import NAMESPACE
from weft_e2e.demo.steps import DemoFailed, Say, Steps
from weft_e2e.kube import Kube, Object
from weft_e2e.replay.records import RoundRecord
from weft_e2e.scenarios.arriving import Arrivals, Traffic, arriving
from weft_e2e.scenarios.replan_scenarios import ANSWERS, AT_MOST_S, PROMPTS, USUAL_MIX, balanced_service
from weft_e2e.scenarios.replanning import PROMISED_S, ROUND_S, WINDOW_S
from weft_e2e.service import ROUTER_PORT, Service, component_of, current_conditions, settled
from weft_e2e.waiting import WaitedTooLong, until

RESOURCE = "weft.dev/simulated-gpu"
"""GPUs of its own, so that the service that the recorded sessions go to keeps its own."""
GPUS_A_NODE = 4
USUAL_S = 4.0
"""How long the planned traffic runs before it changes."""
END_S = WINDOW_S + AT_MOST_S
"""After this long the demo goes on, whatever has been reached."""


@dataclass(frozen=True, slots=True)
class Change:
    """Other traffic, the demo's step that lets it arrive, and how it is called beside its figures."""

    traffic: Traffic
    title: str
    arrives: str


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """A change, the sessions that arrive, and the rounds that were over before."""

    change: Change
    arrivals: Arrivals
    before: Sequence[RoundRecord]


CHANGES = (
    Change(
        PROMPTS,
        title="Let three times the sessions with longer prompts arrive at a second service",
        arrives="three times the sessions, and longer prompts",
    ),
    Change(ANSWERS, title="Let its prompts get shorter and its answers longer", arrives="as many, with long answers"),
)
"""The first needs more workers, the second other roles for the same workers."""
EVERY_S = 1.0


def prepare(kube: Kube) -> Service:
    """Apply the service whose traffic will change, on simulated GPUs of its own; do not wait for it."""
    capacity = json.dumps({"status": {"capacity": {RESOURCE: str(GPUS_A_NODE)}}})
    nodes = kube.kubectl("get", "nodes", "-o", "name").stdout.split()
    for node in nodes:
        kube.kubectl("patch", node, "--subresource=status", "--type=merge", "-p", capacity)
    manifest = balanced_service(USUAL_MIX)
    manifest["spec"]["capacity"]["pools"][0]["resource"] = RESOURCE
    kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(manifest))
    return Service(kube, NAMESPACE, manifest["metadata"]["name"])


def show(service: Service, steps: Steps, *, ready_s: float) -> tuple[Drifted, ...]:
    """Let other traffic arrive, each time until another plan serves alone: first more of it, then another mix.

    Raises:
        DemoFailed: the service did not become ready for its usual traffic.
        KubeError, ClusterError: the cluster does not answer.
    """
    found = []
    with ExitStack() as stack:
        arrivals: Arrivals | None = None
        for change in CHANGES:
            with steps.step(change.title) as detail:
                if arrivals is None:
                    arrivals = stack.enter_context(_usual(service, detail, ready_s=ready_s))
                story, before = Story(service.plan()), arrivals.records
                arrivals.turn_to(change.traffic)
                detail(f"{_words(change.traffic)} arrive now")
                _watch(service, story, Meanwhile(change, arrivals, before), detail)
            failed = [record for record in arrivals.records if not record.ok and record not in before]
            found.append(Drifted(service.name, story, tuple(_problems(story, failed))))
    return tuple(found)


@contextmanager
def _usual(service: Service, detail: Say, *, ready_s: float) -> Iterator[Arrivals]:
    """Yield the sessions of a service that serves what it was planned for."""
    try:
        until(lambda: settled(service.conditions()), what=f"a Ready {service.name}", timeout_s=ready_s)
    except WaitedTooLong as late:
        raise DemoFailed(str(late)) from None
    with (
        service.reachable(run=f"drift-{time.time():.0f}-") as target,
        arriving(Arrivals(target, round_deadline_s=ROUND_S)) as arrivals,
    ):
        arrivals.turn_to(USUAL_MIX)
        detail(f"{_words(USUAL_MIX)} arrive, as planned")
        until(lambda: time.monotonic() - arrivals.turned_at >= USUAL_S, what="usual traffic", timeout_s=60)
        yield arrivals


def _watch(service: Service, story: Story, meanwhile: Meanwhile, detail: Say) -> None:
    console = Console()
    told = 0
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            began = time.monotonic()
            scene = _scene(service, story, meanwhile)
            if console.is_terminal:
                live.update(screen(scene), refresh=True)
            else:
                for at_s, words in story.facts[told:]:
                    detail(f"{at_s:5.1f} s  {words}")
                told = len(story.facts)
            if _over(scene, service) or scene.at_s > END_S:
                break
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))
    if not console.is_terminal:
        console.print(screen(scene))


def _scene(service: Service, story: Story, meanwhile: Meanwhile) -> ReplanTimeline:
    pods = service.pods()
    arrivals = meanwhile.arrivals
    records = arrivals.records
    started = sum(len(one.messages) // 2 + len(one.messages) % 2 for one in list(arrivals.transcripts))
    served, failed = (_count(records, ok=ok) - _count(meanwhile.before, ok=ok) for ok in (True, False))
    return story.take(
        service.object(),
        pods,
        _decode_pages(service, pods),
        at_s=time.monotonic() - arrivals.turned_at,
        arrives=f"{_words(meanwhile.change.traffic)}: {meanwhile.change.arrives}",
        rounds=Rounds(served=served, running=max(0, started - len(records)), failed=failed),
        weighed=service.weighed_plan(),
    )


def _decode_pages(service: Service, pods: list[Object]) -> Mapping[str, str]:
    """Return the metrics pages of decode sidecars that answer, those that drain too."""
    names = [pod["metadata"]["name"] for pod in pods if component_of(pod) in ("decode", "both")]
    scope = f"/api/v1/namespaces/{service.namespace}/pods"

    def read(name: str) -> str:
        path = f"{scope}/{name}:{ROUTER_PORT}/proxy/metrics"
        return service.kube.kubectl("get", "--raw", path, timeout=10, check=False).stdout

    with ThreadPoolExecutor(max_workers=2) as pool:
        return {name: page for name, page in zip(names, pool.map(read, names), strict=True) if page}


def _over(scene: ReplanTimeline, service: Service) -> bool:
    """Return whether the new plan serves alone."""
    if len(scene.plans) == 1 or any(worker.state != "ready" for worker in scene.workers):
        return False
    return settled(current_conditions(service.object()))


def _count(records: Sequence[RoundRecord], *, ok: bool) -> int:
    return sum(record.ok is ok for record in records)


def _problems(story: Story, failed: Sequence[RoundRecord]) -> list[str]:
    found = []
    if failed:
        found.append(f"{len(failed)} rounds failed while the plan changed: {failed[0].outcome}: {failed[0].error}")
    if len(story.scenes[-1].plans) == 1:
        found.append(
            f"no other plan was active {END_S:g} s after the traffic changed; it should be within "
            f"{WINDOW_S + PROMISED_S:g} s"
        )
    return found


def _words(traffic: Traffic) -> str:
    first = traffic.rounds[0]
    return (
        f"{traffic.sessions_per_s:g} sessions/s with first prompts of {first.added_tokens} tokens and answers of "
        f"{first.decode_tokens}"
    )
