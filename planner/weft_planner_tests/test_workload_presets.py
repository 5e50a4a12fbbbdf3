"""Presets hold the papers' figures, and requests and manifests take them, traces, classes and distributions."""

import base64
import gzip
import json
from typing import Any

import pytest

from weft_planner.request.manifest import request_from_service
from weft_planner.request.reading import RequestError, request_of
from weft_planner.workload.presets import UnknownPresetError, preset, presets
from weft_planner.workload.resolving import resolve_workload, workload_instead
from weft_planner.workload.traffic import Workload
from weft_planner_tests.requests import body
from weft_planner_tests.test_manifest import service

# AMPD's Table 1: rounds, prefill and decode tokens.
TABLE1 = {
    "toolbench": (3.96, 703.79, 50.39),
    "gaia": (11.32, 6161.02, 528.76),
    "hotpotqa": (3.0, 1569.80, 80.03),
    "dureader": (3.0, 3081.23, 150.10),
}

FRAGMENT = """
workload:
  arrivalRate: 0.5
  rounds: {mean: 3}
  firstPrompt: {mean: 500, cv: 2}
  increment: {mean: 100}
  decode: {mean: 50}
  gap: {mean: 1500ms}
"""


def trace(**more: Any) -> str:
    rows = [
        {
            "session": f"s{k}",
            "arrival_s": None,
            "turns": [{"incr_prefill": 100 + k, "decode": 20, "gap_s": None} for _ in range(3)],
            **more,
        }
        for k in range(40)
    ]
    return "\n".join(json.dumps(row) for row in rows)


@pytest.mark.parametrize("name", TABLE1)
def test_table_1_is_read_as_totals_of_a_session(name: str) -> None:
    rounds, prompt, decode = TABLE1[name]
    workload = Workload.model_validate({"arrivalRate": 1, **preset(f"ampd/{name}").body})
    (item,) = workload.mix
    assert item.rounds.mean == rounds
    assert item.first_prompt.mean + (rounds - 1) * item.increment.mean == pytest.approx(prompt, abs=0.1)
    assert rounds * item.decode.mean == pytest.approx(decode, abs=0.1)
    assert any("totals of a session" in clause for clause in workload.assumptions)
    assert any("0.6" in clause for clause in workload.assumptions)


def test_the_papers_slos_come_with_their_workloads() -> None:
    assert preset("ampd/dureader").slo["Llama-3.1-70B"] == (5.0, 0.05)
    assert preset("AMPD/GAIA").slo["Mixtral-8x7B"] == (0.35, 0.02)
    assert preset("ampd/gaia").gpus == 32


def test_ppd_has_2_x_9_workloads_and_their_mix() -> None:
    singles = [name for name in presets() if name.startswith(("ppd/short-", "ppd/long-")) and name[-1].isdigit()]
    assert len(singles) == 18
    for name in (*singles, "ppd/mix"):
        workload = Workload.model_validate({"arrivalRate": 1, **preset(name).body})
        assert workload.mean_rounds == 2
        assert any("no lengths; these are assumed" in clause for clause in workload.assumptions)
    mix = Workload.model_validate({"arrivalRate": 1, **preset("ppd/mix").body}).mix
    assert sum(item.share for item in mix) == pytest.approx(1.0)
    assert {item.name: round(item.share * 18) for item in mix}["long-decode-heavy"] == 4
    long = Workload.model_validate({"arrivalRate": 1, **preset("ppd/long-context").body}).mix[0]
    assert (long.rounds.mean, long.first_prompt.mean, long.decode.mean) == (5, 10_000, 100)


def test_an_unknown_preset_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        UnknownPresetError, match=r"'ampd/gaja' is not known; did you mean ampd/gaia\? Known are ampd/toolbench"
    ):
        preset("ampd/gaja")
    with pytest.raises(RequestError, match=r"workload: preset: 'x/y' is not known"):
        request_of(body(workload={"preset": "x/y", "arrivalRate": 1}))


def test_a_request_takes_a_preset_and_what_is_given_beside_it() -> None:
    request = request_of(body(workload={"preset": "ampd/gaia", "arrivalRate": 2, "decode": {"mean": 99, "cv": 1}}))
    assert request.workload.rounds.mean == 11.32
    assert request.workload.decode.cv == 1
    assert "decode given instead of those of AMPD" in " ".join(request.workload.assumptions)
    again = request_of(request.model_dump(by_alias=True))
    assert again == request


@pytest.mark.parametrize("encoding", ["text", "base64"])
def test_a_request_takes_a_trace_with_what_it_lacks(encoding: str) -> None:
    data = trace()
    if encoding == "base64":
        data = base64.b64encode(gzip.compress(data.encode())).decode()
    given = {"trace": {"name": "ConfigMap t, k", "data": data, "encoding": encoding}}
    with pytest.raises(RequestError, match=r"ConfigMap t, k: gaps: .*; arrivals: .*--fill-arrivals"):
        request_of(body(workload=given))
    request = request_of(body(workload={**given, "arrivalRate": 0.3, "gap": 2}))
    assert (request.workload.mean_rounds, request.workload.arrival_rate, request.workload.mean_gap) == (3, 0.3, 2)
    assert "ConfigMap t, k" in request.workload.source


def test_a_bad_trace_in_a_request_is_named_by_line() -> None:
    data = trace() + "\n" + trace()
    with pytest.raises(RequestError, match=r"workload: .*t line 41: session: 's0' appears twice"):
        request_of(body(workload={"trace": {"name": "t", "data": data}, "arrivalRate": 1, "gap": 0}))
    with pytest.raises(RequestError, match="is not base64"):
        request_of(body(workload={"trace": {"name": "t", "data": "?", "encoding": "base64"}}))
    with pytest.raises(RequestError, match="preset and a trace: give one"):
        request_of(body(workload={"trace": {"name": "t", "data": "?"}, "preset": "ampd/gaia"}))


def test_a_workload_file_stands_in_for_a_trace_and_may_build_on_a_preset() -> None:
    request = request_of(body(workload={"trace": {"name": "w.yaml", "data": FRAGMENT}}))
    assert (request.workload.arrival_rate, request.workload.mean_gap) == (0.5, 1.5)
    onto = {"trace": {"name": "w.yaml", "data": "{preset: ampd/gaia, arrivalRate: 3}"}}
    assert request_of(body(workload=onto)).workload.mean_rounds == 11.32


def test_a_trace_replaces_a_services_workload_and_takes_from_it_what_it_lacks() -> None:
    own = request_of(body()).workload.model_dump(by_alias=True)
    replaced = workload_instead(trace().encode(), name="t.jsonl", service=own)
    workload = Workload.model_validate(replaced)
    assert (workload.mean_rounds, workload.arrival_rate, workload.mean_gap) == (3, 0.8, 0.3)
    assert "t.jsonl records no gap: it is the service's" in workload.assumptions
    assert Workload.model_validate(workload_instead(FRAGMENT.encode(), name="w", service=own)).arrival_rate == 0.5


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("workload.decode", {"mean": 5, "cv": 1, "quantiles": {"at": [0, 1], "values": [1, 9]}}, "give one of them"),
        ("workload.decode", {"mean": 5, "cv": -1}, "workload.decode.cv"),
        ("workload.decode", {"mean": 0}, "workload.decode.mean"),
        ("workload.rounds", {"mean": 5, "quantiles": {"at": [0, 1], "values": [9, 1]}}, "values must not fall"),
        ("workload.gap", {"mean": 5, "histogram": {"edges": [0, 0], "weights": [1]}}, "all values are 0"),
        ("workload.arrivals", {"process": "gamma"}, "cv: needed for process gamma"),
        ("workload.arrivals", {"process": "replayed", "timestamps": [3, 3]}, "all are the same"),
        ("workload.arrivals", {"process": "replayed", "timestamps": [3, 1]}, "must not fall"),
        ("workload.sharedPrefix", 1027, "must be fewer than the mean first prompt"),
        ("workload.classes", [{"name": "a", "share": 0}], "workload.classes.0.share"),
        ("workload.classes", [{"name": "a", "share": 1}] * 2, "the name 'a' is used twice"),
        ("workload.classes", [{"name": "a", "share": 1, "sharedPrefix": 2000}], "classes a: sharedPrefix"),
    ],
)
def test_a_bad_workload_is_refused_by_field(path: str, value: Any, named: str) -> None:
    with pytest.raises(RequestError) as fault:
        request_of(body(**{path: value}))
    assert named in str(fault.value)


def test_a_manifest_gives_classes_their_slos_and_durations_their_seconds() -> None:
    request = request_from_service(
        service(
            **{
                "workload.gap": {"mean": "2s", "quantiles": {"at": [0, 0.5, 1], "values": ["0s", "1500ms", "1m"]}},
                "workload.classes": [
                    {"name": "chat", "share": 3, "gap": {"mean": "20s"}},
                    {"name": "agents", "share": 1},
                ],
                "slo.classes": [{"name": "chat", "ttft": "1s", "itl": "30ms"}],
            }
        )
    )
    chat, agents = request.workload.mix
    assert (chat.share, chat.ttft, chat.itl, chat.gap.mean) == (0.75, 1.0, 0.03, 20.0)
    assert (agents.ttft, agents.itl) == (None, None)
    assert agents.gap.mean == pytest.approx(2.0)
    with pytest.raises(
        RequestError, match=r"spec\.slo\.classes\[0\]\.name: spec\.workload\.classes has no class 'bot'"
    ):
        request_from_service(service(**{"slo.classes": [{"name": "bot"}]}))


def test_a_manifest_finds_its_trace_in_a_config_map_of_the_same_file() -> None:
    given = service(workload={"traceConfigMap": {"name": "trace", "key": "w.yaml"}})
    config = {"kind": "ConfigMap", "metadata": {"name": "trace"}, "data": {"w.yaml": FRAGMENT}}
    assert request_from_service(given, [config]).workload.mean_gap == 1.5
    with pytest.raises(RequestError, match=r"traceConfigMap\.name: no ConfigMap named 'trace'"):
        request_from_service(given)
    with pytest.raises(RequestError, match=r"traceConfigMap\.key: ConfigMap trace has no key 'w.yaml'"):
        request_from_service(given, [{**config, "data": {}}])
    packed = {"binaryData": {"w.yaml": base64.b64encode(gzip.compress(trace().encode())).decode()}}
    rated = service(workload={"traceConfigMap": {"name": "trace", "key": "w.yaml"}, "arrivalRate": 1, "gap": "1s"})
    assert request_from_service(rated, [{**config, **packed, "data": {}}]).workload.mean_rounds == 3


def test_shapes_far_from_their_means_are_said() -> None:
    shaped = {"mean": 100, "quantiles": {"at": [0, 1], "values": [0, 100]}}
    workload = Workload.model_validate(resolve_workload({**body()["workload"], "decode": shaped}))
    assert "the shape of decode was scaled by 2 to its mean 100" in workload.assumptions
    assert workload.mean_decode == 100
