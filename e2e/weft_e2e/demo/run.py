"""The main job: from nothing to a measured service."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import yaml

from weft_e2e.cluster import ClusterError
from weft_e2e.demo import baseline as remote
from weft_e2e.demo import drift
from weft_e2e.demo.collect import collect, write
from weft_e2e.demo.facts import Facts, group_words
from weft_e2e.demo.install import bring_up, check_setup, ensure_namespace
from weft_e2e.demo.playing import ReplayRun, choose_sessions, play_and_count
from weft_e2e.demo.settings import EXAMPLE, NAMESPACE, READY_S, REPLAY_DEADLINE_S, Settings, repository_root
from weft_e2e.demo.steps import DemoFailed, Say, Steps
from weft_e2e.kube import Kube, KubeError, Object
from weft_e2e.replay.records import save
from weft_e2e.replay.selection import Selection
from weft_e2e.replay.workload import fit_workload
from weft_e2e.service import Service, condition_words, settled
from weft_e2e.waiting import WaitedTooLong, until
from weft_planner.workload.file import spec_form
from weft_planner.workload.trace_fit import TraceFit

Result = TypeVar("Result")

TOLD = ("Planned", "Progressing", "Ready")
"""Conditions that tell how a service starts; the others say in the first minute that nothing is measured yet."""


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
    manifest = {**manifest, "spec": remote.with_baseline(manifest["spec"])}
    service = apply(kube, manifest, steps)
    # It gets ready while the sessions are replayed to the first.
    second = _changed(lambda: drift.prepare(kube)) if settings.drift else None
    restarts = container_restarts(service)
    with steps.step(
        f"Replay {len(selection.sessions)} sessions, {selection.rounds} rounds, with the service's routing"
    ) as detail:
        played = play(service, selection, detail)
        save(played.result, settings.out / "records.json")
    baseline, alone = None, remote.why_no_baseline(manifest["spec"], service.plan())
    if not alone:
        with steps.step(remote.STEP) as detail:
            baseline = play(service, selection, detail, request_class=remote.CLASS, salt=remote.SALT)
            save(baseline.result, settings.out / "records-baseline.json")
    facts = collect(
        service,
        manifest,
        played,
        baseline=baseline,
        words=words,
        choices=(*selection.notes, *notes, *remote.notes(alone)),
        restarted=container_restarts(service) - restarts,
        context=settings.context,
        steps=steps,
    )
    if second is not None:
        replans = second if isinstance(second, str) else _changed(lambda: drift.show(second, steps, ready_s=READY_S))
        shown = () if isinstance(replans, str) else replans
        found = [replans] if isinstance(replans, str) else [problem for one in shown for problem in one.problems]
        facts = replace(facts, replans=shown, problems=(*facts.problems, *found), steps=tuple(steps.done))
    write(facts, settings.out)
    return facts


def _changed(act: Callable[[], Result]) -> Result | str:
    """Return what came of the second service, or its problem: what the first one showed is worth its report."""
    try:
        return act()
    except (DemoFailed, KubeError, ClusterError, TimeoutError) as error:
        return f"the second service: {error}"


def choose(settings: Settings) -> Selection:
    """Choose the sessions to replay."""
    return choose_sessions(settings.trace, settings.limits)


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
    """Apply the service and wait until it can serve, saying how its start goes on."""
    name = manifest["metadata"]["name"]
    service = Service(kube, NAMESPACE, name)
    with steps.step(f"Apply {name} and wait until it is Ready") as detail:
        ensure_namespace(kube, NAMESPACE)
        kube.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(manifest))
        begin = time.monotonic()
        said: dict[str, str] = {}

        def ready() -> bool:
            now = service.conditions()
            for kind in TOLD:
                condition = now.get(kind)
                if condition is None:
                    continue
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


def play(service: Service, selection: Selection, detail: Say, *, request_class: str = "", salt: int = 0) -> ReplayRun:
    """Replay the sessions through the coordinator, saying now and then how far it is."""
    with service.reachable(run=f"demo-{int(time.time())}-{request_class}-") as target:
        target = replace(target, request_class=request_class)
        return play_and_count(
            selection, target, service.metrics_pages, deadline_s=REPLAY_DEADLINE_S, detail=detail, salt=salt
        )


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
