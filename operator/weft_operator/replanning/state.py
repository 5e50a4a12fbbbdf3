"""Replanning state: the metrics history and the pending replan request of each service, kept in memory only.

After a restart the operator waits longer before it detects drift or idleness.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from weft_core.durations import parse_duration
from weft_core.plan import Plan
from weft_operator.api.objects import ServiceKey
from weft_operator.api.service import DisaggInferenceServiceSpec
from weft_operator.metrics.history import History, in_their_time, quiet_for, sample_of
from weft_operator.metrics.observation import Observation, ObservedWorkload
from weft_operator.render.inputs import PlanRecord
from weft_operator.replanning.decide import ReplanInputs, ReplanRequest
from weft_operator.replanning.drift import DetectedDrift, detect_drifts

MAX_LAGS = 8


@dataclass(slots=True)
class _ServiceState:
    spec: DisaggInferenceServiceSpec
    record: PlanRecord
    history: History
    replan_request: ReplanRequest | None = None
    enqueued_for: tuple[frozenset[tuple[str, str]], bool] = (frozenset(), False)
    """The kinds of drift with their directions, and whether it was idle, when the service was last enqueued."""


class ReplanningState:
    """The histories and pending replan requests of all services that are planned on observed traffic."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, _ServiceState] = {}

    def on_observation(self, key: ServiceKey, observation: Observation) -> bool:
        """Record an observation; return whether drift started or ended, so that the service must be reconciled."""
        state = self._of.get(key)
        if state is None:
            return False
        _add_observation(state, observation)
        kinds = frozenset((drift.kind, drift.direction) for drift in self.drifts(key, observation))
        idle_settings = state.spec.planning.scale_to_zero
        since = state.history.quiet_since
        cause = (
            kinds,
            idle_settings is not None and quiet_for(since, observation.at, parse_duration(idle_settings.after)),
        )
        changed = cause != state.enqueued_for
        state.enqueued_for = cause
        return changed

    def drifts(self, key: ServiceKey, observation: Observation | None) -> tuple[DetectedDrift, ...]:
        """Return the drift of a service at its newest observation."""
        state = self._of.get(key)
        if state is None or observation is None:
            return ()
        return detect_drifts(
            state.record.plan,
            state.spec.slo,
            state.spec.planning,
            history=state.history,
            observation=observation,
            changed_at=state.record.baseline.changed_at,
        )

    def quiet_since(self, key: ServiceKey) -> datetime | None:
        """Return since when there was certainly no request, None where there may have been one."""
        state = self._of.get(key)
        return None if state is None else state.history.quiet_since

    def replan_inputs(
        self,
        key: ServiceKey,
        *,
        spec: DisaggInferenceServiceSpec,
        prior: Mapping[str, Any],
        record: PlanRecord,
        observation: Observation | None,
        now: datetime,
        approval: str,
    ) -> ReplanInputs:
        """Return the inputs of a replanning decision, the newest observation included."""
        keep_s = parse_duration(spec.planning.drift.shrink_after)
        state = self._of.get(key)
        if state is None:
            state = self._of[key] = _ServiceState(spec, record, History(keep_s))
        if state.history.keep_s != keep_s:
            state.history = replace(state.history, keep_s=keep_s)
        if state.record.request_hash != record.request_hash or state.record.plan.groups != record.plan.groups:
            state.replan_request = None  # it was for another plan
        state.spec, state.record = spec, record
        if observation is not None:
            _add_observation(state, observation)
        return ReplanInputs(
            spec=spec,
            prior=prior,
            record=record,
            history=state.history,
            observation=observation,
            now=now,
            approval=approval,
            replan_request=state.replan_request,
        )

    def set_pending(self, key: ServiceKey, replan_request: ReplanRequest | None) -> None:
        """Set the pending replan request; None: there is none any more."""
        if key in self._of:
            self._of[key].replan_request = replan_request

    def forget(self, key: ServiceKey) -> None:
        """Drop the state of a service."""
        self._of.pop(key, None)


def _add_observation(state: _ServiceState, observation: Observation) -> None:
    sample = sample_of(
        observation,
        attainment=state.spec.slo.attainment,
        min_samples=state.spec.planning.drift.min_samples,
        burn_rate=state.spec.planning.drift.burn_rate,
    )
    load, valid = observation.workload, state.record.plan.validity
    if sample.seen and load is not None and valid is not None:
        later, lags = load.round_rate - load.session_rate, lags_of_rounds(state.record.plan, load)
        sample = in_their_time(sample, state.history, later=later, planned=valid.rounds, lags=lags)
    state.history = state.history.with_(sample)


def lags_of_rounds(plan: Plan, load: ObservedWorkload) -> tuple[float, ...]:
    """Return the seconds from a session's start to its later rounds, by the plan and the observation."""
    valid, predicted = plan.validity, plan.predicted
    if valid is None or valid.rounds <= 1:
        return ()
    gap = valid.gap_s if load.gap_s is None else load.gap_s.mean
    decode = valid.decode if load.decode is None else load.decode.mean
    answer = predicted.ttft_mean_s + decode * predicted.itl_mean_s
    length = (valid.rounds - 1) * (gap + (answer if math.isfinite(answer) else 0.0))
    count = min(MAX_LAGS, math.ceil(valid.rounds - 1))
    return tuple(length * (number + 1) / count for number in range(count))
