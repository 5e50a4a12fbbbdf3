"""The main job: from nothing to a measured service."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable

import uvloop
import yaml

from weft_e2e.demo.collect import collect, write
from weft_e2e.demo.facts import Facts, group_words
from weft_e2e.demo.install import bring_up, check_setup, ensure_namespace
from weft_e2e.demo.settings import EXAMPLE, NAMESPACE, READY_S, REPLAY_DEADLINE_S, Settings, repository_root
from weft_e2e.demo.steps import DemoFailed, Say, Steps
from weft_e2e.kube import Kube, Object
from weft_e2e.metrics import growth
from weft_e2e.replay.client import Deadlines, replay
from weft_e2e.replay.records import ReplayResult, RoundRecord, save
from weft_e2e.replay.selection import Selection, recorded_gaps, select
from weft_e2e.replay.traces import load
from weft_e2e.replay.workload import fit_workload
from weft_e2e.service import Service, condition_words, settled
from weft_e2e.waiting import WaitedTooLong, until
from weft_mock.tokenizer import filler
from weft_planner.workload.file import spec_form
from weft_planner.workload.trace_fit import TraceFit


def run(settings: Settings, say: Say) -> Facts:
    """Run every step and return what was measured; files are written to ``settings.out``.

    Raises:
        DemoFailed: a step could not be finished.
    """
    steps = Steps(say)
    with steps.step("Check the set-up"):
        check_setup(settings)
        selection = choose(settings)
        manifest, notes = manifest_for(settings, selection)
    kube, words = bring_up(settings, steps)
    service = apply(kube, manifest, steps)
    with steps.step(f"Replay {len(selection.sessions)} sessions, {selection.rounds} rounds") as detail:
        before, restarts = service.metrics_pages(), container_restarts(service)
        result = play(service, selection, detail)
        save(result, settings.out / "records.json")
        after = pages_at_rest(service, detail)
    facts = collect(
        service,
        manifest,
        result,
        before=before,
        after=after,
        words=words,
        choices=(*selection.notes, *notes),
        restarted=container_restarts(service) - restarts,
        context=settings.context,
        steps=steps,
    )
    write(facts, settings.out)
    return facts


def choose(settings: Settings) -> Selection:
    """Choose the sessions to replay."""
    pool = recorded_gaps(load("claude_code").sessions)
    return select(load(settings.trace), settings.limits, gap_pool=pool, gap_pool_name="claude_code")


def fitted_workload(settings: Settings, selection: Selection) -> TraceFit:
    """Return the workload that the plan is made for, fitted to the sessions that are replayed."""
    return fit_workload(selection.sessions, name=selection.trace, within_s=settings.limits.arrivals_within_s)


def manifest_for(settings: Settings, selection: Selection) -> tuple[Object, tuple[str, ...]]:
    """Return the example service; where other sessions are replayed, with their workload instead of the example's."""
    manifest: Object = yaml.safe_load((repository_root() / EXAMPLE).read_text())
    fitted = fitted_workload(settings, selection)
    worst = max(fitted.figures[""], key=lambda figure: figure.ks)
    farthest = f"{worst.name.replace('_', ' ')}, by at most {worst.ks:.0%} of its values (KS)"
    notes = [f"spec.workload holds distributions fitted to these sessions; the farthest is that of {farthest}"]
    workload = spec_form(fitted.body)
    if manifest["spec"]["workload"] != workload:
        manifest["spec"]["workload"] = workload
        notes.append("spec.workload of the example was replaced by the distributions of these sessions")
    return manifest, tuple(notes)


def apply(kube: Kube, manifest: Object, steps: Steps) -> Service:
    """Apply the service and wait until it can serve, saying each condition as it comes."""
    name = manifest["metadata"]["name"]
    service = Service(kube, NAMESPACE, name)
    with steps.step(f"Apply {name} and wait until it is Ready") as detail:
        ensure_namespace(kube, NAMESPACE)
        kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(manifest))
        begin = time.monotonic()
        said: dict[str, str] = {}

        def ready() -> bool:
            now = service.conditions()
            for kind, condition in sorted(now.items()):
                words = f"{kind}={condition.status} ({condition.reason})"
                if said.get(kind) != words:
                    said[kind] = words
                    detail(f"{time.monotonic() - begin:5.1f} s  {words} {condition.message}".rstrip())
            planned = now.get("Planned")
            if planned is not None and planned.status == "False":
                raise DemoFailed(f"the service was not planned: {planned.reason}: {planned.message}")
            return settled(now)

        try:
            until(ready, what="a Ready service", timeout_s=READY_S, last=lambda: condition_words(service.object()))
        except WaitedTooLong as late:
            raise DemoFailed(f"{late}; see `kubectl -n {NAMESPACE} get pods,events`") from None
        plan = service.plan()
        detail("plan: " + ", ".join(group_words(g) for g in plan.groups) + f"; {plan.gpus} GPUs")
    return service


def play(service: Service, selection: Selection, detail: Say) -> ReplayResult:
    """Replay the sessions through the coordinator, saying now and then how far it is."""
    with (
        service.reachable(run=f"demo-{int(time.time())}-") as target,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(
            replay(
                selection.sessions,
                target,
                filler=filler,
                deadlines=Deadlines(replay_s=REPLAY_DEADLINE_S),
                notes=selection.notes,
                on_record=progress(selection, detail),
            )
        )


def pages_at_rest(service: Service, detail: Say, *, timeout_s: float = 15.0) -> dict[str, str]:
    """Return the metrics pages once no router serves a request: a round is counted just after its last byte.

    Where one still serves after ``timeout_s`` (a round that failed may hang on), say so and return what there is.
    """
    pages: dict[str, str] = {}

    def at_rest() -> bool:
        pages.clear()
        pages.update(service.metrics_pages())
        return growth({}, pages).total("weft_router_inflight") == 0

    try:
        until(at_rest, what="rest", timeout_s=timeout_s, every_s=0.2)
    except WaitedTooLong:
        detail(f"a router still serves requests {timeout_s:g} s after the last round: its counts are not complete")
    return pages


def progress(selection: Selection, detail: Say, *, every_s: float = 10.0) -> Callable[[RoundRecord], None]:
    """Return a listener that says the counts every ``every_s`` seconds."""
    ends = {s.name: len(s.rounds) - 1 for s in selection.sessions}
    counts: Counter[str] = Counter()
    said = [time.monotonic()]

    def listen(record: RoundRecord) -> None:
        counts["rounds"] += 1
        counts["failed"] += not record.ok
        counts["sessions"] += record.index == ends[record.session]
        if time.monotonic() - said[0] >= every_s:
            said[0] = time.monotonic()
            detail(
                f"{record.sent_s + record.total_s:5.1f} s  {counts['rounds']} of {selection.rounds} rounds, "
                f"{counts['sessions']} of {len(ends)} sessions, {counts['failed']} failed"
            )

    return listen


def container_restarts(service: Service) -> Counter[str]:
    """Return how often each container of the service was restarted."""
    return Counter(
        {
            f"{pod['metadata']['name']}/{c['name']}": c["restartCount"]
            for pod in service.pods()
            for key in ("containerStatuses", "initContainerStatuses")
            for c in pod["status"].get(key, ())
        }
    )
