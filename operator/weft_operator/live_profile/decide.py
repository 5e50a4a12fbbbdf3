"""What a measurement does next, from what is there: Jobs, their pods' last words, and the profile so far. Pure.

All that is remembered is in the cluster: a Job's name follows from what it measures and why, so a pass that was killed
anywhere goes on; an ended Job that brought no profile keeps its name for an hour, and there is no other try before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weft_core.plan import content_hash
from weft_operator.api.service import GROUP, VERSION
from weft_operator.api.serving import MeasureProfile
from weft_operator.desired.rendering import Rendering
from weft_operator.desired.router import Mounts
from weft_operator.diff import Action, Apply, Delete, stamped
from weft_operator.engines.container import ENGINE_PORT
from weft_operator.live_profile.jobs import profile_job, reader_job
from weft_operator.live_profile.results import NotUsableError, Taken, marks_of, merged, notes, read, taken
from weft_operator.live_profile.seen import address, ended, last_words, trouble
from weft_operator.live_profile.targets import KV_TIMED, Target, gpu_types, identity, profile_name, targets_of
from weft_operator.manifest import (
    COMPONENT_LABEL,
    DEGREE_LABEL,
    MEASURE_ANNOTATION,
    POOL_LABEL,
    PROFILE_COMPONENT,
    Manifest,
    annotations_of,
    condition_of,
    is_terminating,
    key_of,
    labels_of,
    name_of,
)
from weft_operator.observe import Observed
from weft_operator.status import Verdict
from weft_operator.telling import timestamp

LOOK_S = 15.0
"""Jobs are not watched, their pods are: this one is for an end without a pod."""
READER_S = 180.0
"""So long the pod of the engine that reads may wait for a node; then KV transfers are not measured."""
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Measuring:
    """What to say and to do; ``again_s``: when to look although nothing happens."""

    verdict: Verdict
    actions: tuple[Action, ...] = ()
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Try:
    """One measurement of one target, and the names of its Jobs."""

    target: Target
    identity: str
    asked: str
    job: str
    reader: str
    measured: Mapping[int, Taken]


def measuring(
    rendering: Rendering, observed: Observed, mounts: Mounts, *, settled: bool, now: datetime
) -> Measuring | None:
    """Return what a service's measurement does next; None where none is asked for.

    ``settled``: whether the workers are those of the plan, so that what they take of the budget is known.
    """
    measure = rendering.spec.profile.measure
    if measure is None:
        return None
    targets = targets_of(rendering.spec)
    lacking = sorted(set(gpu_types(rendering.spec)) - {target.gpu for target in targets})
    if lacking:
        words = (
            f"no degree of spec.profile.measure.degrees is one that a pool with {', '.join(lacking)} has on a single "
            "node, and plans need measured costs of all GPU types or of none; correct it"
        )
        return Measuring(Verdict("False", "NothingToMeasure", words), tuple(_left_over(observed, None)))
    tries = [_try(rendering, observed, measure, target) for target in targets]
    next_one = next((one for one in tries if _runs(one, observed) or not _fresh(one, measure, observed)), None)
    given_up = tuple(_left_over(observed, next_one))
    if next_one is None:
        return Measuring(Verdict("True", "Measured", _measured_words(tries)), given_up)
    found = _go_on(rendering, observed, mounts, measure, next_one, settled=settled, now=now)
    return Measuring(found.verdict, (*given_up, *found.actions), found.again_s)


def _try(rendering: Rendering, observed: Observed, measure: MeasureProfile, target: Target) -> _Try:
    service = rendering.key.name
    of = identity(rendering.spec, target.gpu)
    asked = annotations_of(observed.service).get(MEASURE_ANNOTATION, "").strip()
    known = taken(observed.named("CostProfile", profile_name(service, target.gpu)), of)
    word = content_hash([service, of, target.degree, asked, _stale_since(measure, observed)], 8)
    marks = marks_of(of, asked)
    for job in observed.of_kind("Job"):
        # One that began for another reason, or failed: there is no second one beside it, nor soon after it.
        same = labels_of(job).get(DEGREE_LABEL) == str(target.degree) and marks.items() <= annotations_of(job).items()
        if same and "-profile-" in name_of(job) and name_of(job) not in {row.job for row in known.values()}:
            word = name_of(job).rpartition("-")[2]
    ends = [f"-{kind}-{target.degree}-{word}" for kind in ("profile", "reads")]
    job_name, reader = (f"{service[: _LONGEST_NAME - len(end)]}{end}" for end in ends)
    return _Try(target, of, asked, job_name, reader, known)


def _runs(one: _Try, observed: Observed) -> bool:
    """Tell whether a measurement is under way, or has ended and not been taken in yet."""
    job = observed.named("Job", one.job)
    if job is None or any(row.job == one.job for row in one.measured.values()):
        return False
    words = last_words(observed, one.job)
    return not ended(job) or (words is not None and words[0] == 0)


def _stale_since(measure: MeasureProfile, observed: Observed) -> str:
    """Return since when the service has been slower than the profile says; "" where it is not, or nobody minds."""
    said = condition_of(observed.service, "CostModelFresh")
    slow = said is not None and said.get("reason") == "SlowerThanPredicted" and measure.when == "Stale"
    return str(said["lastTransitionTime"]) if slow and said is not None else ""


def _fresh(one: _Try, measure: MeasureProfile, observed: Observed) -> bool:
    row = one.measured.get(one.target.degree)
    return row is not None and row.at >= _stale_since(measure, observed) and (not one.asked or row.asked == one.asked)


def _go_on(
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    measure: MeasureProfile,
    one: _Try,
    *,
    settled: bool,
    now: datetime,
) -> Measuring:
    job = observed.named("Job", one.job)
    what = f"degree {one.target.degree} on {one.target.gpu}"
    if job is None:
        return _begin(rendering, observed, mounts, measure, one, settled=settled, now=now)
    done = last_words(observed, one.job)
    over = ended(job)
    if done is not None and done[0] == 0:
        try:
            profile = _profile(rendering, observed, one, read(done[1], one.target.degree), now)
        except NotUsableError as error:
            words = f"what Job {one.job} measured of {what} is not used: {error}; it is tried again in an hour"
            return Measuring(Verdict("False", "NotUsable", words))
        words = f"Job {one.job} has measured {what}"
        return Measuring(Verdict("Unknown", "Measuring", words), (profile,), again_s=1.0)
    if done is not None or over:
        why = done[1].strip() if done is not None else over
        why_not = trouble(observed, one.job)
        words = f"Job {one.job} did not measure {what}: {why}{f'; {why_not}' if why_not else ''}"
        return Measuring(Verdict("False", "MeasuringFailed", f"{words}; it is tried again in an hour"))
    if not settled:
        words = f"measuring {what} makes way for a change of the plan, and begins anew after it"
        return Measuring(Verdict("Unknown", "Waiting", words), tuple(_making_way(observed, one)))
    why_not = trouble(observed, one.job)
    words = f"Job {one.job} measures {what}{f': {why_not}' if why_not else ''}"
    return Measuring(Verdict("Unknown", "Measuring", words), again_s=LOOK_S)


def _begin(
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    measure: MeasureProfile,
    one: _Try,
    *,
    settled: bool,
    now: datetime,
) -> Measuring:
    spec, degree = rendering.spec, one.target.degree
    if not rendering.settings.operator_image:
        words = "the operator does not know its own image, which measures: set WEFT_OPERATOR_IMAGE, as the chart does"
        return Measuring(Verdict("False", "MeasuringFailed", words))
    if not settled:
        words = f"degree {degree} on {one.target.gpu} is measured once the workers are those of the plan"
        return Measuring(Verdict("Unknown", "Waiting", words), tuple(_making_way(observed, one)))
    pool = rendering.pool(one.target.pool)
    bound = spec.capacity.gpus if pool.gpus is None else pool.gpus
    free = measure.extra_gpus + min(
        spec.capacity.gpus - _in_use(rendering, observed), bound - _in_use(rendering, observed, pool.name)
    )
    if free < degree:
        words = (
            f"a worker of degree {degree} needs {degree} GPUs to be measured, and the plan leaves {max(free, 0)} of "
            f"{min(bound, spec.capacity.gpus)}; raise spec.profile.measure.extraGpus to "
            f"{measure.extra_gpus + degree - free}, or wait until the service needs less"
        )
        return Measuring(Verdict("False", "NoRoom", words))
    actions: list[Action] = []
    url = ""
    if spec.engine.type in KV_TIMED and rendering.record.paired and free >= 2 * degree:
        reader = observed.named("Job", one.reader)
        if reader is None:
            job = reader_job(rendering, mounts, one.target, measure, name=one.reader)
            words = f"starting the engine that reads the KV of degree {degree}"
            return Measuring(Verdict("Unknown", "Measuring", words), (_made(job),), again_s=LOOK_S)
        where = address(observed, one.reader)
        since = reader["metadata"].get("creationTimestamp")
        age = (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0
        if not where and age < READER_S and not ended(reader):
            words = f"waiting for a node for Job {one.reader}, whose engine reads the KV of degree {degree}"
            return Measuring(Verdict("Unknown", "Measuring", words), again_s=LOOK_S)
        if where:
            url = f"http://{where}:{ENGINE_PORT}"
        elif not ended(reader):
            actions.append(_delete(reader, "no node has room for it"))
    made = profile_job(rendering, mounts, one.target, measure, name=one.job, reader=url)
    made["metadata"]["annotations"] = marks_of(one.identity, one.asked)
    actions.append(_made(made))
    words = f"Job {one.job} begins to measure degree {degree} on {one.target.gpu}"
    return Measuring(Verdict("Unknown", "Measuring", words), tuple(actions), again_s=LOOK_S)


def _profile(rendering: Rendering, observed: Observed, one: _Try, new: dict[str, Any], now: datetime) -> Apply:
    """Return the action that takes a degree's figures into the measured CostProfile."""
    name = profile_name(rendering.key.name, one.target.gpu)
    live = observed.named("CostProfile", name)
    known = live["spec"] if live is not None and one.measured else None
    record = rendering.record
    before = record.profiles.get(one.target.pool, record.profile)
    spec = merged(new, degree=one.target.degree, known=known, before=before)
    rows = {**one.measured, one.target.degree: Taken(timestamp(now), one.job, one.asked)}
    spec["gpu"] = one.target.gpu
    metadata = rendering.metadata(name, PROFILE_COMPONENT)
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "CostProfile",
        "metadata": {**metadata, "annotations": notes(rows, one.identity)},
        "spec": spec,
    }
    uid = "" if live is None else str(live["metadata"].get("uid", ""))
    return Apply(stamped(body), reason=f"{one.job} measured it", fresh=live is None, uid=uid)


def _left_over(observed: Observed, one: _Try | None) -> Iterator[Delete]:
    """Yield what is to go: Jobs that still run for another spec, and readers that nobody reads from any more."""
    for job in observed.of_kind("Job"):
        name = name_of(job)
        if labels_of(job).get(COMPONENT_LABEL) != PROFILE_COMPONENT or is_terminating(job):
            continue
        if _over(observed, name):
            continue  # it holds nothing but its log
        if one is None or name not in (one.job, one.reader):
            yield _delete(job, "not measured any more")
        elif name == one.reader and _over(observed, one.job):
            yield _delete(job, "its reading is over")


def _making_way(observed: Observed, one: _Try) -> Iterator[Delete]:
    """Yield the end of both Jobs of a try: a plan change needs all GPUs of the budget."""
    for name in (one.job, one.reader):
        job = observed.named("Job", name)
        if job is not None and not ended(job) and not is_terminating(job):
            yield _delete(job, "the plan changes")


def _over(observed: Observed, name: str) -> bool:
    job = observed.named("Job", name)
    return job is not None and bool(ended(job) or last_words(observed, name) is not None)


def _in_use(rendering: Rendering, observed: Observed, pool: str = "") -> int:
    """Return the GPUs, of a pool or of all, that the plan takes or workers have that are still there."""
    record = rendering.record
    groups = () if record.standing.asleep_at is not None else record.plan.groups
    planned = sum(group.gpus for group in groups if pool in ("", group.pool))
    # One StatefulSet is one worker, on however many nodes.
    there = sum(
        int(labels_of(item).get(DEGREE_LABEL, "0"))
        for item in observed.workers
        if item["kind"] == "StatefulSet"
        and item["spec"].get("replicas")
        and pool in ("", labels_of(item).get(POOL_LABEL))
    )
    return max(planned, there)


def _measured_words(tries: list[_Try]) -> str:
    rows = [(one.target, one.measured[one.target.degree]) for one in tries]
    listed = ", ".join(f"degree {target.degree} on {target.gpu} at {row.at}" for target, row in rows[:8])
    return f"plans are made with what was measured: {listed}"


def _made(manifest: Manifest) -> Apply:
    return Apply(stamped(manifest), reason="to measure the cost profile", fresh=True)


def _delete(job: Manifest, reason: str) -> Delete:
    return Delete(key_of(job), uid=str(job["metadata"].get("uid", "")), reason=reason)
