"""Let a service's traffic change, and show live what the operator makes of it."""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.live import Live

from weft_e2e.demo.scene import Drifted, ReplanTimeline, Rounds, Story
from weft_e2e.demo.screen import screen
from weft_e2e.demo.settings import NAMESPACE
from weft_e2e.demo.steps import DemoFailed, Say, Steps
from weft_e2e.kube import Kube, Object
from weft_e2e.scenarios.arriving import Arrivals, Traffic, arriving
from weft_e2e.scenarios.replanning import AT_MOST_S, PROMISED_S, ROUND_S, SURGE, USUAL, WINDOW_S, drifting_service
from weft_e2e.service import ROUTER_PORT, Service, component_of, current_conditions, settled
from weft_e2e.waiting import WaitedTooLong, until

RESOURCE = "weft.dev/simulated-gpu"
"""GPUs of its own, so that the service that the recorded sessions go to keeps its own."""
GPUS_A_NODE = 4
USUAL_S = 4.0
"""How long the planned traffic runs before it changes."""
END_S = WINDOW_S + AT_MOST_S
"""After this long the demo goes on, whatever has been reached."""
EVERY_S = 1.0


def prepare(kube: Kube) -> Service:
    """Apply the service whose traffic will change, on simulated GPUs of its own; do not wait for it."""
    capacity = json.dumps({"status": {"capacity": {RESOURCE: str(GPUS_A_NODE)}}})
    nodes = kube.kubectl("get", "nodes", "-o", "name").stdout.split()
    for node in nodes:
        kube.kubectl("patch", node, "--subresource=status", "--type=merge", "-p", capacity)
    manifest = drifting_service("Auto", rate=USUAL.sessions_per_s, first_prompt=USUAL.rounds[0].added_tokens)
    manifest["spec"]["capacity"]["pools"][0]["resource"] = RESOURCE
    kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(manifest))
    return Service(kube, NAMESPACE, manifest["metadata"]["name"])


def show(service: Service, steps: Steps, *, ready_s: float) -> Drifted:
    """Let three times the sessions with longer prompts arrive, until another plan serves them and the old workers left.

    Raises:
        DemoFailed: the service did not become ready for its usual traffic.
        KubeError, ClusterError: the cluster does not answer.
    """
    with steps.step("Let three times the sessions with longer prompts arrive at a second service") as detail:
        try:
            until(lambda: settled(service.conditions()), what=f"a Ready {service.name}", timeout_s=ready_s)
        except WaitedTooLong as late:
            raise DemoFailed(str(late)) from None
        story = Story(service.plan())
        with (
            service.reachable(run=f"drift-{time.time():.0f}-") as target,
            arriving(Arrivals(target, round_deadline_s=ROUND_S)) as arrivals,
        ):
            arrivals.turn_to(USUAL)
            detail(f"{_words(USUAL)} arrive, as planned")
            until(lambda: time.monotonic() - arrivals.turned_at >= USUAL_S, what="usual traffic", timeout_s=60)
            arrivals.turn_to(SURGE)
            detail(f"{_words(SURGE)} arrive now")
            _watch(service, story, arrivals, detail)
        return Drifted(service.name, story, tuple(_problems(story, arrivals)))


def _watch(service: Service, story: Story, arrivals: Arrivals, detail: Say) -> None:
    console = Console()
    told = 0
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            began = time.monotonic()
            scene = _scene(service, story, arrivals)
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


def _scene(service: Service, story: Story, arrivals: Arrivals) -> ReplanTimeline:
    pods = service.pods()
    records = arrivals.records
    begun = sum(len(one.messages) // 2 + len(one.messages) % 2 for one in list(arrivals.transcripts))
    return story.take(
        service.object(),
        pods,
        _decode_pages(service, pods),
        at_s=time.monotonic() - arrivals.turned_at,
        arrives=f"{_words(SURGE)}: three times the sessions, and longer prompts",
        rounds=Rounds(
            served=sum(record.ok for record in records),
            running=max(0, begun - len(records)),
            failed=sum(not record.ok for record in records),
        ),
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


def _problems(story: Story, arrivals: Arrivals) -> list[str]:
    found = []
    failed = [record for record in arrivals.records if not record.ok]
    if failed:
        found.append(f"{len(failed)} rounds failed while the plan changed: {failed[0].outcome}: {failed[0].error}")
    if len(story.scenes[-1].plans) == 1:
        found.append(
            f"no other plan was active {END_S:g} s after the traffic changed; it should be within "
            f"{WINDOW_S + PROMISED_S:g} s"
        )
    return found


def _words(traffic: Traffic) -> str:
    return f"{traffic.sessions_per_s:g} sessions/s with first prompts of {traffic.rounds[0].added_tokens} tokens"
