"""Each check fails when what it looks for is wrong: a check that cannot fail proves nothing."""

from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest

from weft_e2e.checks import (
    CheckFailed,
    check_answers,
    check_history_read,
    check_no_failures,
    check_no_silent_failures,
    check_nothing_left,
    check_pods_untouched,
    check_ready,
    check_tokens_computed_once,
    check_unchanged,
)
from weft_e2e.checks.objects import child_specs
from weft_e2e.checks.sessions import expected_reply
from weft_e2e.kube import Object
from weft_e2e.replay.client import SessionTranscript
from weft_e2e.service import Service, condition_words, current_conditions
from weft_e2e_tests.demo_samples import a_round
from weft_e2e_tests.fake_kube import Done, FakeKube


def a_pod(name: str, component: str, *, ready: bool = True, uid: str = "u", restarts: int = 0) -> Object:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": uid,
            "labels": {"weft.dev/service": "s", "app.kubernetes.io/component": component},
        },
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [{"name": "engine", "restartCount": restarts}],
        },
    }


def a_service(*, generation: int = 3, observed: int = 3, ready: str = "True", progressing: str = "False") -> Object:
    prediction = {"ttftP95": 1.0, "itlP95": 0.02, "ttftMean": 0.5, "itlMean": 0.02, "sloMet": True}
    groups = [{"role": r, "degree": 1, "replicas": 1, "pool": "p"} for r in ("prefill", "decode")]
    return {
        "kind": "DisaggInferenceService",
        "metadata": {"name": "s", "generation": generation},
        "status": {
            "observedGeneration": observed,
            "conditions": [
                {"type": "Planned", "status": "True", "reason": "PlanReady", "observedGeneration": observed},
                {"type": "Ready", "status": ready, "reason": "Serving", "message": "m", "observedGeneration": observed},
                {"type": "Progressing", "status": progressing, "reason": "UpToDate", "observedGeneration": observed},
            ],
            "plan": {
                "revision": "r",
                "inputsHash": "h",
                "objective": "latency",
                "groups": groups,
                "predicted": prediction,
            },
        },
    }


def a_running_service() -> tuple[FakeKube, Service]:
    kube = FakeKube([a_service(), a_pod("p", "prefill", uid="1"), a_pod("d", "decode", uid="2")])
    return kube, Service(kube, "n", "s")


def test_a_ready_service_passes() -> None:
    _kube, service = a_running_service()

    check_ready(service)
    check_pods_untouched(service, {"p": "1", "d": "2"})


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (a_service(ready="False"), r"n/s after 0 s: Ready is not True: Planned=True"),
        (a_service(progressing="True"), "Progressing is not False"),
        (a_service(observed=2), "Planned is not True"),
    ],
)
def test_conditions_must_hold_for_the_newest_spec(status: Object, words: str) -> None:
    kube, service = a_running_service()
    kube.objects[0] = status

    with pytest.raises(CheckFailed, match=words):
        check_ready(service)


def test_as_many_ready_workers_are_needed_as_planned() -> None:
    kube, service = a_running_service()
    kube.objects[2] = a_pod("d", "decode", ready=False)

    with pytest.raises(CheckFailed, match="1 decode workers are planned, Ready pods are: none"):
        check_ready(service)


def test_a_pod_that_should_have_been_replaced_is_noticed() -> None:
    _kube, service = a_running_service()

    check_ready(service, without={"of another pod"})
    with pytest.raises(CheckFailed, match=r"decode pods that should have been replaced are Ready: d$"):
        check_ready(service, without={"2"})


@dataclass
class Changing(FakeKube):
    """Has other objects at each reading of the service; the last ones stay."""

    later: list[list[Object]] = field(default_factory=list)

    def kubectl(self, *args: str, **options: Any) -> Done:
        if args[1] != "pods" and self.later:
            self.objects = self.later.pop(0)
        return super().kubectl(*args, **options)


def test_a_status_from_before_a_loss_is_not_taken_for_readiness() -> None:
    prefill, lost = a_pod("p", "prefill", uid="1"), a_pod("d", "decode", uid="2")
    starting, new = a_pod("d", "decode", uid="3", ready=False), a_pod("d", "decode", uid="3")
    after_loss = [
        [a_service(), prefill, lost],
        [a_service(), prefill],
        [a_service(), prefill, starting],
        [a_service(ready="False", progressing="True"), prefill, starting],
        [a_service(ready="False", progressing="True"), prefill, new],
        [a_service(), prefill, new],
    ]
    kube = Changing(later=list(after_loss))

    with patch("weft_e2e.waiting.time.sleep") as pause:
        check_ready(Service(kube, "n", "s"), timeout_s=10, without={"2"})

    assert kube.later == []
    assert pause.call_count == 5
    for unready in after_loss[:-1]:
        with pytest.raises(CheckFailed):
            check_ready(Service(FakeKube(unready), "n", "s"), without={"2"})


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
def test_a_restarted_container_is_a_failure_that_no_waiting_undoes(kind: str) -> None:
    kube, service = a_running_service()
    kube.objects[1] = a_pod("p", "prefill", restarts=1)
    kube.objects[1]["status"][kind] = kube.objects[1]["status"].pop("containerStatuses")

    with pytest.raises(CheckFailed, match=r"containers were restarted: \{'p/engine': 1\}"):
        check_ready(service, timeout_s=600)


def test_a_replaced_pod_is_noticed() -> None:
    kube, service = a_running_service()
    kube.objects[1] = a_pod("p", "prefill", uid="9")

    with pytest.raises(CheckFailed, match=r"gone \['p'\], new \['p'\]"):
        check_pods_untouched(service, {"p": "1", "d": "2"})


def test_a_changed_child_is_noticed() -> None:
    kube, service = a_running_service()
    labels = {"weft.dev/service": "s"}
    child = {"kind": "ConfigMap", "metadata": {"name": "c", "uid": "c", "labels": labels}, "data": {"a": "1"}}
    kube.objects.append(child)
    before = child_specs(service)
    check_unchanged(service, before)
    kube.objects[-1] = {**child, "data": {"a": "2"}}

    with pytest.raises(CheckFailed, match="children changed: ConfigMap/c"):
        check_unchanged(service, before)


def test_what_is_left_in_a_namespace_is_named() -> None:
    own = {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}}
    check_nothing_left(FakeKube([own]), "n", timeout_s=1)

    with pytest.raises(CheckFailed, match="left: Pod/p"):
        check_nothing_left(FakeKube([own, a_pod("p", "prefill")]), "n", timeout_s=0)


def test_conditions_of_an_older_spec_do_not_count() -> None:
    assert current_conditions(a_service(observed=2)) == {}
    assert current_conditions({"metadata": {"generation": 1}}) == {}
    assert "Ready=True (Serving: m)" in condition_words(a_service())


def test_silent_failures_are_not_tolerated_and_clear_ones_counted() -> None:
    ok = a_round("a")
    refused = a_round("b", outcome="refused", error="HTTP 503: no decode worker is ready")
    unsent = a_round("b", 1, outcome="not_sent", error="round 1 ended with: refused")

    assert check_no_silent_failures([ok, refused, unsent]) == (1, 1)
    for outcome in ("truncated", "connection", "deadline", "malformed"):
        with pytest.raises(CheckFailed, match="1 of 2 rounds failed without a clear error: c round 1"):
            check_no_silent_failures([ok, a_round("c", outcome=outcome, error="x")])
    check_no_failures([ok])
    with pytest.raises(CheckFailed, match="2 of 3 rounds failed: b round 1 refused"):
        check_no_failures([ok, refused, unsent])
    with pytest.raises(CheckFailed, match="0 of 0"):
        check_no_failures([])
    with pytest.raises(CheckFailed, match="1 rounds were never sent and nothing says why"):
        check_no_silent_failures([ok, replace(unsent, session="z")])


def test_a_wrong_answer_is_found_with_its_place() -> None:
    messages = [{"role": "user", "content": "tell me"}]
    right = expected_reply(messages, 8)
    record = a_round("s", decode_tokens=8)
    check_answers(SessionTranscript("s", [*messages, {"role": "assistant", "content": right}], [record]))

    wrong = right[:5] + "#" + right[6:]
    with pytest.raises(CheckFailed, match=r"s round 1 .* differs from character 5 on"):
        check_answers(SessionTranscript("s", [*messages, {"role": "assistant", "content": wrong}], [record]))


PAGE = """# TYPE weft_mock_history_tokens_total counter
weft_mock_history_tokens_total{{source="decode_to_prefill"}} {read}
weft_mock_history_tokens_total{{source="recomputed"}} {recomputed}
# TYPE weft_mock_kv_protocol_errors_total counter
weft_mock_kv_protocol_errors_total{{reason="x"}} {errors}
# TYPE weft_mock_refused_handles_total counter
# TYPE weft_mock_prefilled_tokens_total counter
weft_mock_prefilled_tokens_total {computed}
"""


def _pages(*, read: int = 0, recomputed: int = 0, errors: int = 0, computed: int = 0) -> dict[str, str]:
    return {"e/engine": PAGE.format(read=read, recomputed=recomputed, errors=errors, computed=computed)}


def test_history_must_be_read_and_never_recomputed() -> None:
    check_history_read(_pages(), _pages(read=50), remote_later_rounds=1)

    with pytest.raises(CheckFailed, match="recomputed 3 history tokens"):
        check_history_read(_pages(), _pages(read=50, recomputed=3), remote_later_rounds=1)
    with pytest.raises(CheckFailed, match="no history was read from decode workers"):
        check_history_read(_pages(read=50), _pages(read=50), remote_later_rounds=1)
    with pytest.raises(CheckFailed, match="refused 2 KV transfers"):
        check_history_read(_pages(), _pages(read=50, errors=2), remote_later_rounds=1)


def test_more_computed_tokens_than_were_added_are_found() -> None:
    records = [a_round("s", k) for k in range(4)]
    check_tokens_computed_once(_pages(), _pages(computed=420), records)

    with pytest.raises(CheckFailed, match="computed 1000 prompt tokens for 4 rounds that added 400"):
        check_tokens_computed_once(_pages(), _pages(computed=1000), records)
