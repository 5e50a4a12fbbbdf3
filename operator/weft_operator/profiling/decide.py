"""The next step of a measurement, from its Jobs, their pods' termination messages, and the profile so far. Pure.

All state is in the cluster: a Job's name is a hash of what it measures and why, so a pass can be killed at any point.
A failed Job keeps its name for an hour, so there is no retry before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from weft_core.authority import http_url
from weft_core.plan import content_hash
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.cost_profile import profile_name
from weft_operator.api.objects import (
    DEGREE_LABEL,
    MEASURE_ANNOTATION,
    PROFILE_COMPONENT,
    Manifest,
    annotations_of,
    condition_of,
    is_terminating,
    labels_of,
    name_of,
    timestamp,
)
from weft_operator.api.planning import MeasureProfile
from weft_operator.api.service import GROUP, VERSION
from weft_operator.kube.diff import Action, Apply, stamped
from weft_operator.kube.observe import Observed
from weft_operator.profiling.capacity_check import free_gpus
from weft_operator.profiling.cleanup import deletion_of, left_over, preempted
from weft_operator.profiling.job_status import address, ended, termination_of, trouble, waits_for_node
from weft_operator.profiling.jobs import profile_job, reader_job
from weft_operator.profiling.results import DegreeMeasurement, NotUsableError, marks_of, merged, notes, read, taken
from weft_operator.profiling.targets import KV_TIMED, MeasurementTarget, gpu_types, identity, targets_of
from weft_operator.render.engines.container import ENGINE_PORT
from weft_operator.render.inputs import Rendering
from weft_operator.render.router_container import Mounts

WorkerStability = Literal["Settled", "Troubled", "Changing"]
"""Settled: the workers are those of the plan, so a measurement may start. Troubled: some are not ready, for example
after a crash; a running measurement goes on. Changing: a measurement ends, because the plan changes or a worker is
unschedulable."""

RECHECK_S = 15.0
"""Jobs are not watched, but their pods are: this is for the end of a Job without a pod."""
NODE_S = 180.0
"""How long a pod may be unschedulable before KV transfers are skipped, or the condition reports too few GPUs."""
REST = timedelta(days=1)
"""A profile that is too fast is not measured again within this time: the result would be the same."""
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class ProfilingStep:
    """The condition and the actions; ``requeue_after``: seconds after which to reconcile without an event."""

    verdict: ConditionValue | None
    actions: tuple[Action, ...] = ()
    requeue_after: float | None = None


@dataclass(frozen=True, slots=True)
class _Measurement:
    """A measurement of one target, and the names of its Jobs."""

    target: MeasurementTarget
    identity: str
    asked: str
    job: str
    reader: str
    measured: Mapping[int, DegreeMeasurement]


def next_profiling_step(
    measure: MeasureProfile,
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    *,
    stability: WorkerStability,
    now: datetime,
) -> ProfilingStep:
    """Return the next step of the measurement that a service requests."""
    if observed.jobs_refused is not None:
        return ProfilingStep(ConditionValue("False", "MeasurementFailed", observed.jobs_refused.lack()))
    targets = targets_of(rendering.spec)
    lacking = sorted(set(gpu_types(rendering.spec)) - {target.gpu for target in targets})
    if lacking:
        split = sorted({pool.gpu_type for pool in rendering.spec.capacity.pools if pool.parallelism is not None})
        if set(split) & set(lacking):
            words = (
                f"the pools of {', '.join(split)} have spec.capacity.pools.parallelism, which is not measured in Jobs; "
                "remove spec.profile.measure, or give a profile (weft profile silicon, spec.profile.ref)"
            )
            return ProfilingStep(ConditionValue("False", "NothingToMeasure", words), tuple(left_over(observed, ())))
        words = (
            f"no degree of spec.profile.measure.degrees is one that a pool with {', '.join(lacking)} has on a single "
            "node, and plans need measured costs of all GPU types or of none; correct it"
        )
        return ProfilingStep(ConditionValue("False", "NothingToMeasure", words), tuple(left_over(observed, ())))
    measurements = [_measurement(rendering, observed, measure, target) for target in targets]
    next_one = next(
        (one for one in measurements if _runs(one, observed) or not _fresh(one, measure, observed, now)), None
    )
    given_up = tuple(left_over(observed, () if next_one is None else (next_one.job, next_one.reader)))
    if next_one is None:
        return ProfilingStep(ConditionValue("True", "Measured", _measured_message(measurements)), given_up)
    found = _continue(rendering, observed, mounts, measure, next_one, stability=stability, now=now)
    return ProfilingStep(found.verdict, (*given_up, *found.actions), found.requeue_after)


def _measurement(
    rendering: Rendering, observed: Observed, measure: MeasureProfile, target: MeasurementTarget
) -> _Measurement:
    service = rendering.key.name
    of = identity(rendering.spec, target.gpu)
    asked = annotations_of(observed.service).get(MEASURE_ANNOTATION, "").strip()
    known = taken(observed.named("CostProfile", profile_name(service, target.gpu)), of)
    word = content_hash([service, of, target.degree, asked, _stale_since(measure, observed)], 8)
    marks = marks_of(of, asked)
    for job in observed.of_kind("Job"):
        # A Job that started for another reason, or failed, is reused: no second one runs beside or soon after it.
        same = labels_of(job).get(DEGREE_LABEL) == str(target.degree) and marks.items() <= annotations_of(job).items()
        if same and "-profile-" in name_of(job) and name_of(job) not in {row.job for row in known.values()}:
            word = name_of(job).rpartition("-")[2]
    ends = [f"-{kind}-{target.degree}-{word}" for kind in ("profile", "reads")]
    job_name, reader = (f"{service[: _LONGEST_NAME - len(end)]}{end}" for end in ends)
    return _Measurement(target, of, asked, job_name, reader, known)


def _runs(one: _Measurement, observed: Observed) -> bool:
    """Return whether a measurement runs, or has ended with a result that is not used yet."""
    job = observed.named("Job", one.job)
    if job is None or any(row.job == one.job for row in one.measured.values()):
        return False
    words = termination_of(observed, one.job)
    return not ended(job) or (words is not None and words[0] == 0)


def _stale_since(measure: MeasureProfile, observed: Observed) -> str:
    """Return since when the service has been slower than its profile, "" where it is not or that is ignored."""
    fresh = condition_of(observed.service, "CostModelFresh")
    slow = fresh is not None and fresh.get("reason") == "SlowerThanPredicted" and measure.when == "Stale"
    return str(fresh["lastTransitionTime"]) if slow and fresh is not None else ""


def _fresh(one: _Measurement, measure: MeasureProfile, observed: Observed, now: datetime) -> bool:
    row = one.measured.get(one.target.degree)
    if row is None or (one.asked and row.asked != one.asked):
        return False
    return row.at >= _stale_since(measure, observed) or now < datetime.fromisoformat(row.at) + REST


def _continue(
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    measure: MeasureProfile,
    one: _Measurement,
    *,
    stability: WorkerStability,
    now: datetime,
) -> ProfilingStep:
    job = observed.named("Job", one.job)
    what = f"degree {one.target.degree} on {one.target.gpu}"
    if job is None:
        return _start(rendering, observed, mounts, measure, one, stability=stability, now=now)
    done = termination_of(observed, one.job)
    over = ended(job)
    if done is not None and done[0] == 0:
        try:
            profile = _profile(rendering, observed, one, read(done[1], one.target.degree), now)
        except NotUsableError as error:
            words = f"what Job {one.job} measured of {what} is not used: {error}; it is tried again in an hour"
            return ProfilingStep(ConditionValue("False", "MeasurementUnusable", words))
        words = f"Job {one.job} has measured {what}"
        return ProfilingStep(ConditionValue("Unknown", "Measuring", words), (profile,), requeue_after=1.0)
    if done is not None or over:
        why = done[1].strip() if done is not None else over
        why_not = trouble(observed, one.job)
        words = f"Job {one.job} did not measure {what}: {why}{f'; {why_not}' if why_not else ''}"
        return ProfilingStep(ConditionValue("False", "MeasurementFailed", f"{words}; it is tried again in an hour"))
    if stability == "Changing":
        words = f"measuring {what} makes way for a change of the plan, and begins anew after it"
        return ProfilingStep(
            ConditionValue("Unknown", "Waiting", words), tuple(preempted(observed, (one.job, one.reader)))
        )
    why_not = trouble(observed, one.job)
    words = f"Job {one.job} measures {what}{f': {why_not}' if why_not else ''}"
    if waits_for_node(observed, one.job) and _age_s(job, now) >= NODE_S:
        # The reading engine's GPUs are those that this one lacks.
        reader = observed.named("Job", one.reader)
        freed: tuple[Action, ...] = ()
        if reader is not None and not is_terminating(reader):
            freed = (deletion_of(reader, "the engine that is measured has no node"),)
        return ProfilingStep(ConditionValue("False", "InsufficientCapacity", words), freed, requeue_after=RECHECK_S)
    return ProfilingStep(ConditionValue("Unknown", "Measuring", words), requeue_after=RECHECK_S)


def _start(
    rendering: Rendering,
    observed: Observed,
    mounts: Mounts,
    measure: MeasureProfile,
    one: _Measurement,
    *,
    stability: WorkerStability,
    now: datetime,
) -> ProfilingStep:
    degree = one.target.degree
    if not rendering.settings.operator_image:
        words = "the operator does not know its own image, which measures: set WEFT_OPERATOR_IMAGE, as the chart does"
        return ProfilingStep(ConditionValue("False", "MeasurementFailed", words))
    if stability != "Settled":
        words = f"degree {degree} on {one.target.gpu} is measured once the workers are those of the plan"
        going = preempted(observed, (one.job, one.reader)) if stability == "Changing" else ()
        return ProfilingStep(ConditionValue("Unknown", "Waiting", words), tuple(going))
    free, bound = free_gpus(rendering, observed, measure, one.target.pool)
    if free < degree:
        words = (
            f"a worker of degree {degree} needs {degree} GPUs to be measured, and the plan leaves {max(free, 0)} of "
            f"{bound}; raise spec.profile.measure.extraGpus to "
            f"{measure.extra_gpus + degree - free}, or wait until the service needs less"
        )
        return ProfilingStep(ConditionValue("False", "InsufficientCapacity", words))
    actions: list[Action] = []
    url = ""
    if _kv_timed(rendering) and free >= 2 * degree:
        reader = observed.named("Job", one.reader)
        if reader is None:
            job = reader_job(rendering, mounts, one.target, measure, name=one.reader)
            words = f"starting the engine that reads the KV of degree {degree}"
            return ProfilingStep(ConditionValue("Unknown", "Measuring", words), (_made(job),), requeue_after=RECHECK_S)
        where = address(observed, one.reader)
        if not where and _age_s(reader, now) < NODE_S and not ended(reader):
            words = f"waiting for a node for Job {one.reader}, whose engine reads the KV of degree {degree}"
            return ProfilingStep(ConditionValue("Unknown", "Measuring", words), requeue_after=RECHECK_S)
        if where:
            url = http_url(where, ENGINE_PORT)
        elif not ended(reader):
            actions.append(deletion_of(reader, "no node has room for it"))
    made = profile_job(rendering, mounts, one.target, measure, name=one.job, reader=url)
    made["metadata"]["annotations"] = marks_of(one.identity, one.asked)
    actions.append(_made(made))
    words = f"Job {one.job} begins to measure degree {degree} on {one.target.gpu}"
    return ProfilingStep(ConditionValue("Unknown", "Measuring", words), tuple(actions), requeue_after=RECHECK_S)


def _profile(rendering: Rendering, observed: Observed, one: _Measurement, new: dict[str, Any], now: datetime) -> Apply:
    """Return the action that adds a degree's figures to the measured CostProfile."""
    name = profile_name(rendering.key.name, one.target.gpu)
    live = observed.named("CostProfile", name)
    known = live["spec"] if live is not None and one.measured else None
    record = rendering.record
    before = record.profiles.get(one.target.pool, record.profile)
    spec = merged(new, degree=one.target.degree, known=known, before=before)
    rows = {**one.measured, one.target.degree: DegreeMeasurement(timestamp(now), one.job, one.asked)}
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


def _kv_timed(rendering: Rendering) -> bool:
    """Return whether transfers between a prefill and a decode engine of one degree can be timed.

    The profiler assumes the same block size on both ends.
    """
    sizes = rendering.spec.engine.kv_transfer.block_tokens
    alike = sizes is None or sizes.prefill == sizes.decode
    return rendering.spec.engine.type in KV_TIMED and rendering.record.paired and alike


def _age_s(job: Manifest, now: datetime) -> float:
    since = job["metadata"].get("creationTimestamp")
    return (now - datetime.fromisoformat(since)).total_seconds() if since else 0.0


def _measured_message(measurements: list[_Measurement]) -> str:
    rows = [(one.target, one.measured[one.target.degree]) for one in measurements]
    listed = ", ".join(f"degree {target.degree} on {target.gpu} at {row.at}" for target, row in rows[:8])
    return f"plans are made with what was measured: {listed}"


def _made(manifest: Manifest) -> Apply:
    return Apply(stamped(manifest), reason="to measure the cost profile", fresh=True)
