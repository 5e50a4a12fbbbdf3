"""A local service is rendered as the operator renders it; only addresses differ, and what needs a cluster is named."""

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from weft_cli.errors import BadInputError
from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.layouts import WorkerRole
from weft_core.models import MODELS
from weft_core.plan import Plan, PlannedGroup, Prediction
from weft_core.profile_json import profile_to_json
from weft_e2e.local import kept, manifest, ports, rendering, replaying, table
from weft_e2e.local.cli import local
from weft_e2e.local.rendering import Given
from weft_e2e.local.supervisor import tail
from weft_e2e.replay.selection import Limits
from weft_e2e_tests.demo_samples import PLAN, SLO
from weft_mock.cli import mock_engine
from weft_mock.kv_transfer_config import check_transfer_config
from weft_operator.api.kv_cache import KvCache
from weft_operator.api.service import DisaggInferenceService
from weft_operator.planning.planner_process import Planned
from weft_operator.render.config_maps import live_config, router_config
from weft_operator.render.inputs import Rendering
from weft_router.config import Flags, load

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
SMALL = EXAMPLES / "llama-3.1-8b.yaml"
PROFILE = profile_to_json(
    derive_profile(MODELS["meta-llama/Llama-3.1-8B-Instruct"], GPUS["nvidia-l40s"], degrees=[1, 2])
)
TWO_AND_ONE = (PlannedGroup("prefill", 1, 2, "l40s"), PlannedGroup("decode", 2, 1, "l40s"))

WITH_STORE = {"cpu": {"size": "64Gi"}, "remote": {"lmcache": {"url": "lm://store:65432"}}}


def rendered(file: Path = SMALL, groups: tuple[PlannedGroup, ...] = TWO_AND_ONE) -> Rendering:
    """Return an example's rendering, planned by hand."""
    service = DisaggInferenceService.model_validate(yaml.safe_load(file.read_text()))
    predicted = Prediction(ttft_p95_s=0.2, itl_p95_s=0.02, ttft_mean_s=0.1, itl_mean_s=0.01, gpus=4, slo_met=True)
    plan = Plan(groups=groups, predicted=predicted, objective="latency", inputs_hash="x", revision="y")
    return rendering.rendering_of(service, Planned(plan=plan, profile=PROFILE))


def test_every_planned_worker_has_an_engine_with_the_name_it_has_in_a_cluster() -> None:
    engines = rendering.mock_engines(rendered(), [1, 2, 3, 4, 5, 6])

    assert [(e.name, e.worker.role, e.url, e.side_port) for e in engines] == [
        ("llama-3-1-8b-d2-0", "decode", "http://127.0.0.1:1", 2),
        ("llama-3-1-8b-p1-0", "prefill", "http://127.0.0.1:3", 4),
        ("llama-3-1-8b-p1-1", "prefill", "http://127.0.0.1:5", 6),
    ]


def test_the_router_is_told_what_the_operator_tells_routers(tmp_path: Path) -> None:
    found = rendered()
    for name, text in rendering.files(found, rendering.mock_engines(found, range(1, 7))).items():
        (tmp_path / name).write_text(text)

    told = json.loads((tmp_path / "router.json").read_text())
    assert told == json.loads(router_config(found)["data"]["router.json"])
    assert (tmp_path / "live.json").read_text() == live_config(found)["data"]["live.json"]
    (tmp_path / "token").write_text("a-token-of-this-test")
    part = rendering.router_part(folder=tmp_path, port=8123)
    settings = load(
        Flags(
            role="standalone", config=tmp_path / "router.json", listen="127.0.0.1:8123", engine_url="", advertise=None,
            drain_seconds=1, workers=tmp_path / "workers.json",
        ),
        dict(part.env),
    )  # fmt: skip
    assert settings.config.routing.policy == "weft"
    assert settings.config.slo.ttft == 1.0
    assert [(w.name, w.role, w.degree) for w in settings.workers] == [
        ("llama-3-1-8b-d2-0", "decode", 2),
        ("llama-3-1-8b-p1-0", "prefill", 1),
        ("llama-3-1-8b-p1-1", "prefill", 1),
    ]
    assert {"--role=standalone", "--listen=127.0.0.1:8123"} <= set(part.args)


def test_classes_and_tenants_stay_and_what_needs_a_cluster_is_left_out_by_name() -> None:
    file = EXAMPLES / "classes-and-tenants.yaml"
    found = rendered(file)

    files = rendering.files(found, rendering.mock_engines(found, range(1, 7)))

    told, live = json.loads(files["router.json"]), json.loads(files["live.json"])
    assert not {"auth", "tls", "telemetry"} & set(told)
    assert told["limits"]["rates"]["requestsPerSecond"] == 20
    assert set(live["qos"]["classes"]) == {"interactive", "batch"}
    assert live["routing"]["policy"] == "weft"
    said = rendering.left_out(found.spec, given=False)
    assert [line.split(":")[0] for line in said] == [
        "spec.coordinator.auth.apiKeySecretRef",
        "spec.coordinator.auth.jwt",
        "spec.coordinator.tls",
        "spec.telemetry.otlpEndpoint",
    ]
    assert rendering.left_out(rendered().spec, given=False) == ()


def test_a_mock_engine_has_the_arguments_of_its_pod_and_loopback_addresses(tmp_path: Path) -> None:
    found = rendered()
    decode = rendering.mock_engines(found, [11, 12, 13, 14, 15, 16])[0]

    part = rendering.engine_part(found, decode, folder=tmp_path, time_scale=0.5)

    given = mock_engine.make_context("mock-engine", list(part.args)).params
    assert (given["listen"], given["side_channel_host"], given["side_channel_port"]) == (
        "127.0.0.1:11",
        "127.0.0.1",
        12,
    )
    assert (given["role"], given["degree"], given["bidirectional"], given["time_scale"]) == ("both", 2, True, 0.5)
    assert given["profile"] == tmp_path / "profile.json"
    assert given["engine_id"] == part.name == "llama-3-1-8b-d2-0"
    assert given["max_model_len"] == 32768


def test_a_mock_engine_is_given_the_connectors_of_tiers_and_accepts_them(tmp_path: Path) -> None:
    found = rendered(EXAMPLES / "kv-cache-cpu.yaml")

    for engine in rendering.mock_engines(found, range(1, 7)):
        part = rendering.engine_part(found, engine, folder=tmp_path, time_scale=None)
        given = mock_engine.make_context("mock-engine", list(part.args)).params
        check_transfer_config(given["kv_transfer_config"], bidirectional=given["bidirectional"])
        assert given["kv_tiers"] == (f"cpu:{64 * 2**30}",)
    assert rendering.left_out(found.spec, given=False) == rendering.left_out(found.spec, given=True) == ()
    stored = found.spec.model_copy(update={"kv_cache": KvCache.model_validate(WITH_STORE)})
    assert rendering.left_out(stored, given=False) == ("spec.kvCache.remote: mock engines have no store",)
    assert rendering.left_out(stored, given=True) == ()


def test_no_kv_events_are_published_where_nobody_listens(tmp_path: Path) -> None:
    found = rendered(EXAMPLES / "kv-cache-cpu.yaml")
    spec = found.spec.model_copy(update={"engine": found.spec.engine.model_copy(update={"kv_events": "Enabled"})})
    found = replace(found, record=replace(found.record, spec=spec))
    engine = rendering.mock_engines(found, range(1, 7))[0]
    args = rendering.engine_part(found, engine, folder=tmp_path, time_scale=None).args
    assert not any("kv-events" in arg for arg in args)
    (said,) = rendering.left_out(spec, given=False)
    assert said.startswith("spec.engine.kvEvents: ")


def test_a_mock_engine_stands_in_for_a_real_one_without_that_ones_arguments(tmp_path: Path) -> None:
    groups = (PlannedGroup("prefill", 1, 1, "h100"), PlannedGroup("decode", 2, 1, "h100"))
    found = rendered(EXAMPLES / "llama-3.1-70b-h100-vllm.yaml", groups)
    engine = rendering.mock_engines(found, range(1, 5))[0]

    part = rendering.engine_part(found, engine, folder=tmp_path, time_scale=None)

    given = mock_engine.make_context("mock-engine", list(part.args)).params
    assert (given["protocol"], given["no_plugin"]) == ("vllm", True)
    assert any("stand in" in line for line in rendering.left_out(found.spec, given=False))
    assert not any("stand in" in line for line in rendering.left_out(found.spec, given=True))


def test_a_stand_in_has_the_sizes_of_its_role(tmp_path: Path) -> None:
    groups = (PlannedGroup("prefill", 1, 1, "h100"), PlannedGroup("decode", 2, 1, "h100"))
    body = yaml.safe_load((EXAMPLES / "llama-3.1-70b-h100-vllm.yaml").read_text())
    body["spec"]["engine"]["decode"] = {"args": ["--seed=1"], "maxNumSeqs": 8}
    path = tmp_path / "dis.yaml"
    path.write_text(yaml.safe_dump(body))
    found = rendered(path, groups)

    parts = [
        rendering.engine_part(found, engine, folder=tmp_path, time_scale=None)
        for engine in rendering.mock_engines(found, range(1, 5))
    ]

    given = [mock_engine.make_context("mock-engine", list(part.args)).params for part in parts]
    assert {item["role"]: item["max_num_seqs"] for item in given} == {"prefill": 256, "decode": 8}


def test_no_weights_are_waited_for_where_none_are_downloaded(tmp_path: Path) -> None:
    groups = (PlannedGroup("prefill", 2, 1, "h100"), PlannedGroup("decode", 4, 1, "h100"))
    found = rendered(EXAMPLES / "llama-3.1-70b-cached-weights.yaml", groups)
    engine = rendering.mock_engines(found, range(1, 5))[0]
    part = rendering.engine_part(found, engine, folder=tmp_path, time_scale=None)
    assert mock_engine.make_context("mock-engine", list(part.args)).params["weights"] is None


def test_given_engines_cost_what_a_planned_worker_of_their_role_costs() -> None:
    given = [Given("decode", "http://d"), Given("prefill", "http://p"), Given("decode", "http://e")]

    engines = rendering.given_engines(rendered(), given)

    assert [(e.name, e.url, e.worker.degree) for e in engines] == [
        ("decode-0", "http://d", 2),
        ("prefill-0", "http://p", 1),
        ("decode-1", "http://e", 2),
    ]


@pytest.mark.parametrize(
    ("layouts", "roles", "asked"),
    [
        (None, [], None),
        (None, ["prefill", "decode", "decode"], ["disaggregated"]),
        (None, ["decode"], ["colocated"]),
        (None, ["both", "both"], ["symmetric"]),
        (None, ["prefill", "both"], ["hybrid"]),
        (["hybrid"], ["both"], ["hybrid"]),
    ],
)
def test_engines_that_run_already_decide_about_the_layout_unless_the_file_does(
    layouts: list[str] | None, roles: list[WorkerRole], asked: list[str] | None
) -> None:
    request: dict[str, Any] = {"engine": {"type": "mock"} if layouts is None else {"type": "mock", "layouts": layouts}}

    assert manifest.for_engines(request, roles)["engine"].get("layouts") == asked


@pytest.mark.parametrize(
    ("groups", "given", "words"),
    [
        (TWO_AND_ONE, [Given("decode", "http://d")], "add --engine prefill=http://HOST:PORT"),
        (TWO_AND_ONE, [Given("prefill", "http://p")], "add --engine decode=http://HOST:PORT"),
        (TWO_AND_ONE[1:], [Given("decode", "http://d"), Given("prefill", "http://p")], "has no prefill workers"),
    ],
)
def test_engines_that_cannot_serve_the_plan_are_refused(
    groups: tuple[PlannedGroup, ...], given: list[Given], words: str
) -> None:
    with pytest.raises(BadInputError, match=words):
        rendering.given_engines(rendered(groups=groups), given)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--engine", "chef=http://x"], "begin with prefill=, decode= or both="),
        (["--engine", "decode=ftp://x"], "give a URL such as decode=http://127.0.0.1:8000"),
        (["--engine", "decode=http://x", "--time-scale", "0.1"], "--time-scale is for mock engines"),
        (["--sessions", "3"], "add --replay claude_code"),
        (["--time-scale", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused_before_anything_starts(args: list[str], words: str) -> None:
    result = CliRunner().invoke(local, ["-f", "x.yaml", *args])

    assert result.exit_code == 2
    assert words in result.output


def test_a_replay_has_no_key_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_API_KEYS_FILE", "keys")

    result = CliRunner().invoke(local, ["-f", "x.yaml", "--replay", "gaia_whowhen"])

    assert result.exit_code == 2
    assert "WEFT_API_KEYS_FILE is set" in result.output


def test_a_wrong_manifest_is_refused_with_its_field(tmp_path: Path) -> None:
    body = yaml.safe_load(SMALL.read_text())
    body["spec"]["slo"]["itl"] = 30
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(body))

    with pytest.raises(BadInputError, match=r"x\.yaml: spec\.slo\.itl: must be a duration"):
        manifest.read(str(tmp_path / "x.yaml"), name=None, profiles=())


def test_the_planner_is_asked_early_what_it_would_be_asked_late(tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text("kind: ConfigMap")

    for file in (SMALL, EXAMPLES / "llama-3.1-70b-two-pools.yaml"):
        assert (
            manifest.question(str(file), name=None, profiles=())
            == manifest.read(str(file), name=None, profiles=()).request
        )
    for wrong in ("none.yaml", "missing.yaml"):
        assert manifest.question(str(tmp_path / wrong), name=None, profiles=()) is None
    assert manifest.question("-", name=None, profiles=()) is None


def test_the_manifest_is_read_with_the_defaults_of_the_api() -> None:
    service = manifest.read(str(SMALL), name=None, profiles=())

    assert service.arrival_rate == 0.8
    assert service.spec["slo"]["percentile"] == 95
    assert service.object.metadata.name == "llama-3-1-8b"


def test_a_port_that_is_taken_is_refused_when_it_was_asked_for() -> None:
    import socket

    with socket.socket() as held:
        held.bind((ports.HOST, 0))
        held.listen()
        taken = held.getsockname()[1]
        with pytest.raises(ports.PortTaken, match=f"--port {taken}: something listens there"):
            ports.router_port(taken)
    assert ports.router_port(taken) == taken
    assert len(set(ports.free_ports(6))) == 6


def test_two_stacks_that_start_at_the_same_time_get_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_QUIET", range(29_990, 29_996))
    monkeypatch.setattr(ports, "_kept", deque())
    first, second = ports.free_ports(3), ports.free_ports(3)
    assert sorted(first + second) == list(range(29_990, 29_996)), "neither has bound any of its ports yet"
    with pytest.raises(ports.PortTaken, match="fewer than 1 of the ports"):
        ports.free_ports(1)
    ports._release()
    assert len(ports.free_ports(6)) == 6
    ports._release()


def test_a_plan_is_kept_until_the_question_or_the_planner_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "MOST", 2)
    name = kept.name_of({"a": 1})

    assert kept.find(name) is None
    kept.keep(name, b"answer")
    assert kept.find(name) == b"answer"
    assert kept.name_of({"a": 2}) != name == kept.name_of({"a": 1})
    monkeypatch.setattr(kept, "_sources", lambda: iter([("solve.py", 1, 2)]))
    assert kept.name_of({"a": 1}) != name
    kept.forget(kept.name_of({"a": 3}))
    for other in ("b.json", "c.json"):
        kept.keep(other, b"")
    assert len(list(kept.folder().iterdir())) == 2


@pytest.mark.parametrize(
    ("sessions", "rate", "within", "capped"), [(None, 0.64, 50.0, False), (8, 2.0, 4.0, False), (8, 0.01, 120.0, True)]
)
def test_sessions_arrive_at_the_rate_of_the_file(
    sessions: int | None, rate: float, within: float, capped: bool
) -> None:
    limits, notes = replaying.limits_for(Limits(), sessions=sessions, rate=rate, context_tokens=8192)

    assert limits.arrivals_within_s == within
    assert limits.sessions == (sessions or 32)
    assert limits.max_context_tokens == 8192
    assert bool(notes) == capped


def test_the_table_says_plan_prediction_address_and_what_is_different() -> None:
    said = table.render(
        name="s", model="m/x", plan=PLAN, slo=SLO, engines="3 mock engines for 16 x nvidia-h20",
        url="http://127.0.0.1:8080", ready_s=3.14, plan_s=2.0, folder=Path("logs"),
        workers=(("s-d8-0", "decode"), ("s-p4-0", "prefill")), left_out=("a: b", "c: d"),
    )  # fmt: skip

    assert "2 x TP4 prefill, 1 x TP8 decode; 16 GPUs" in said
    assert "TTFT P95 1.10 s (SLO 2 s), ITL P95 21.0 ms (SLO 40 ms)" in said
    assert "in 3.1 s (2.0 s of it for the plan)" in said
    assert "curl -N http://127.0.0.1:8080/v1/chat/completions" in said
    assert "Workers     s-d8-0 decode, s-p4-0 prefill\n            another role: weft local role s-d8-0 " in said
    assert said.endswith("Not as told a: b\n            c: d")


def test_the_end_of_a_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {k}\n" for k in range(2000)))

    assert tail(log, 2) == "  line 1998\n  line 1999"
    assert tail(tmp_path / "none.log") == ""
