"""Let services scale, and after each step hold the repository, Argo CD and the cluster against each other."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from weft_e2e.checks import CheckFailed
from weft_e2e.cluster import kubectl
from weft_e2e.gitops.api import (
    APPLICATIONS,
    SERVICES,
    SyncReports,
    by_name,
    gpus,
    is_true,
    refresh,
    refreshed,
    writes_of_spec,
)
from weft_e2e.gitops.argocd import state_of, synced_by
from weft_e2e.gitops.content import Content
from weft_e2e.gitops.prometheus_stub import SimulatedLoad
from weft_e2e.kube import Object

LOW, HIGH = 0.4, 2.4
"""Sessions a second that one prefill worker serves, and that need more of them."""
STEP_S = 400.0
"""Nothing takes longer: an operator holds a plan for a minute, and many services may ask for plans at a time."""

Says = Callable[[str], None]


@dataclass(slots=True)
class Scaling:
    """A service on its way from one plan to the next."""

    name: str
    gpus: int
    generation: int
    since: float = field(default_factory=time.monotonic)
    told: bool = False
    """Whether Argo CD was told to compare after the plan changed."""
    moves: list[int] = field(default_factory=list)
    """GPUs after each step."""


@dataclass(slots=True)
class StepTargets:
    """What steps are taken on."""

    http: httpx.Client
    admin: Path
    content: Content
    telling: SimulatedLoad
    namespace: str
    heard: SyncReports
    say: Says


def steps(stage: StepTargets, names: Sequence[str], *, each: int) -> list[Scaling]:
    """Let each service scale so many times, all of them beside each other; return what they did.

    Raises:
        CheckFailed: Argo CD, the repository or the service says something else than it must, or a step never came.
    """
    found = by_name(stage.http, f"{SERVICES}/namespaces/{stage.namespace}/disagginferenceservices")
    scaling = [Scaling(name, gpus(found[name]) or 0, found[name]["metadata"]["generation"]) for name in names]
    for one in scaling:
        _turn(stage, one)
    while any(len(one.moves) < each for one in scaling):
        _require_synced(stage)
        live = by_name(stage.http, f"{SERVICES}/namespaces/{stage.namespace}/disagginferenceservices")
        applications = by_name(stage.http, APPLICATIONS)
        for one in scaling:
            if len(one.moves) < each and _arrived(stage, one, live[one.name], applications[one.name]):
                one.moves.append(one.gpus)
                count = sum(len(other.moves) for other in scaling)
                seconds = time.monotonic() - one.since
                stage.say(
                    f"{count:4d}  {one.name}: {one.gpus} GPUs after {seconds:.0f} s; Synced, Healthy, no difference"
                )
                if len(one.moves) < each:
                    _turn(stage, one)
        time.sleep(0.5)
    _require_synced(stage)
    return scaling


def _turn(stage: StepTargets, one: Scaling) -> None:
    stage.telling.rates[one.name] = LOW if stage.telling.rates.get(one.name) == HIGH else HIGH
    one.since, one.told = time.monotonic(), False


def _arrived(stage: StepTargets, one: Scaling, live: Object, application: Object) -> bool:
    """Return whether a step is done; once it is, everything about it must be right."""
    now = gpus(live)
    if not one.told:
        more = stage.telling.rates[one.name] == HIGH
        if now is not None and (now > one.gpus) is more and now != one.gpus and _at_rest(live):
            one.gpus, one.told = now, True
            refresh(stage.http, one.name)
        return _not_late(one, live, application)
    if not refreshed(application) or state_of(application) != ("Synced", "Healthy"):
        return _not_late(one, live, application)
    _require_untouched(stage, one, live, application)
    return True


def _at_rest(live: Object) -> bool:
    return is_true(live, "Ready") and not is_true(live, "Reconciling")


def _not_late(one: Scaling, live: Object, application: Object) -> bool:
    if time.monotonic() - one.since > STEP_S:
        planned = [item for item in live["status"]["conditions"] if item["type"] in ("Planned", "MetricsAvailable")]
        raise CheckFailed(f"{one.name} did not scale within {STEP_S:g} s: {planned}; {state_of(application)}")
    return False


def _require_untouched(stage: StepTargets, one: Scaling, live: Object, application: Object) -> None:
    """Require the repository to say what the cluster has, nobody to have synced, and the spec to be as it was."""
    difference = diff(stage, one.name)
    if difference:
        raise CheckFailed(f"{one.name} differs from the repository:\n{difference}")
    if live["metadata"]["generation"] != one.generation:
        raise CheckFailed(f"the spec of {one.name} was written: generation {live['metadata']['generation']}")
    written = writes_of_spec(live)
    if written:
        raise CheckFailed(f"the operator manages {', '.join(written)} of {one.name}")
    if synced_by(application) != 1:
        raise CheckFailed(f"Argo CD has synced {one.name} {synced_by(application)} times")


def diff(stage: StepTargets, name: str) -> str:
    """Return what ``kubectl diff --server-side`` says of a service's file, "" where there is no difference."""
    file = str(stage.content.manifest(name))
    argv = kubectl.kubectl_argv("diff", "--server-side", "--force-conflicts", "-n", stage.namespace, "-f", file)
    done = kubectl.run(argv, stage.admin, check=False)
    if done.returncode not in (0, 1):
        raise CheckFailed(f"kubectl diff ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def _require_synced(stage: StepTargets) -> None:
    if stage.heard.wrong:
        raise CheckFailed(f"Argo CD said: {'; '.join(stage.heard.wrong[:5])}")
