"""The sections of router.json: defaults that change nothing, classes that are resolved, errors that name the field."""

import json
from pathlib import Path
from typing import Any

import pytest

from weft_router.config import ConfigError, Flags, RouterConfig, load, read_config
from weft_router.config.reference import router_page

PROFILE: dict[str, Any] = {
    "model": "m",
    "gpu": "none",
    "engine": "test",
    "kvBytesPerToken": 1000,
    "degrees": [
        {
            "degree": 1,
            "weightBytesPerGpu": 1,
            "kvCapacityTokens": 16000,
            "prefill": [{"alpha": 0.01, "perToken": 1e-4, "perPair": 0.0, "perContextToken": 0.0}],
            "decode": [{"alpha": 0.01, "perSequence": 1e-4, "perContextToken": 0.0}],
        }
    ],
    "transfers": [{"source": 1, "destination": 1, "link": "inter-node", "alpha": 0.001, "perToken": 1e-6}],
    "provenance": {},
}


def body(**sections: Any) -> dict[str, Any]:
    return {
        "service": "svc", "namespace": "default", "model": {"name": "m", "maxModelLen": 4096},
        "engine": {"type": "mock"}, "slo": {"ttft": 2.0, "itl": 0.05}, "profile": PROFILE, **sections,
    }  # fmt: skip


def read(**sections: Any) -> RouterConfig:
    return read_config(json.dumps(body(**sections)).encode(), source="router.json")


def test_a_file_without_the_new_sections_means_what_it_meant() -> None:
    config = read()
    assert (config.tls, config.auth.jwt, config.auth.api_keys_file) == (None, None, "")
    assert config.telemetry.otlp_endpoint == ""
    assert (config.access_log.to, config.access_log.sample_ratio) == ("stderr", 1.0)
    assert config.qos.known() == {"default"}
    assert config.limits.rates.requests_per_second is config.limits.rates.concurrent is None
    plain = config.session_classes()["default"]
    assert (plain.routing, plain.slo) == (config.routing, config.slo)
    assert not plain.qos.early_rejection
    assert (config.routing.hedge.mode, config.routing.symmetric) == ("off", False)


def test_the_reference_page_is_up_to_date_and_describes_every_field() -> None:
    page = router_page()
    assert (Path(__file__).parents[2] / "docs" / "reference" / "router.md").read_text() == page, "run make generate"
    rows = [[cell.strip() for cell in line.split(" | ")] for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    for field, *_, meaning in rows:
        words = meaning.removesuffix(" |").partition(" (")[0]
        assert len(words) > 10, f"{field} is not described"
        assert not words.startswith(("at least", "above", "one of")), f"{field} is not described"


def test_a_class_has_its_own_rules_and_the_services_for_the_rest() -> None:
    config = read(
        qos={"classes": {"gold": {"priority": 3}, "batch": {}, "same": {}}},
        routing={
            "policy": "weft", "order": "edf", "binding": "least-requests", "params": {"itl_statistic": 1},
            "classes": {
                "gold": {"ttft": 0.5},
                "batch": {"policy": "threshold", "itl": 0.2},
                "same": {"params": {"itl_statistic": 2}},
            },
        },
    )  # fmt: skip
    gold, batch, same, default = (config.session_classes()[n] for n in ("gold", "batch", "same", "default"))
    assert (gold.slo.ttft, gold.slo.itl, gold.qos.priority) == (0.5, 0.05, 3)
    assert (gold.routing.policy, gold.routing.order, gold.routing.binding) == (
        "weft",
        "edf",
        "least-requests",
    )
    assert gold.routing.params == {"itl_statistic": 1}
    assert (batch.routing.policy, batch.routing.order, batch.routing.params) == ("threshold", "edf", {})
    assert (batch.routing.binding, batch.slo.itl) == ("least-requests", 0.2)
    assert same.routing.params == {"itl_statistic": 2}
    assert default.routing.policy == "weft"


JWT = {"issuer": "https://issuer.example.com", "audience": "weft", "jwksUrl": "https://issuer.example.com/keys"}


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"qos": {"classes": {"a": {"priority": -1}}}}, r"qos\.classes\.a\.priority"),
        ({"qos": {"classes": {"a": {"localOnly": "sometimes"}}}}, r"qos\.classes\.a\.localOnly"),
        ({"qos": {"defaultClass": "gold"}}, "defaultClass: 'gold' is not one of default; add it to qos.classes"),
        ({"qos": {"tenants": {"t": {"class": "gold"}}}}, "tenants.t.class: 'gold' is not one of default"),
        ({"qos": {"tenants": {"t": {"classes": ["gold"]}}}}, "tenants.t.classes: 'gold' is not one of default"),
        ({"qos": {"tenants": {"t": {"weight": 0}}}}, r"qos\.tenants\.t\.weight"),
        ({"qos": {"pressure": {"least": 9, "largest": 8}}}, "least: 9 is more than largest 8"),
        ({"qos": {"classHeader": "X Class"}}, r"qos\.classHeader"),
        ({"routing": {"classes": {"gold": {}}}}, "routing.classes.gold: no such class; add it to qos.classes"),
        (
            {"qos": {"classes": {"a": {}}}, "routing": {"policy": "ampd", "classes": {"a": {"params": {"x": 1}}}}},
            "classes.a.params: the parameters of ampd",
        ),
        (
            {"qos": {"classes": {"a": {}}}, "routing": {"classes": {"a": {"policy": "fixed-x", "params": {"y": 1}}}}},
            r"classes\.a\.params\.y: fixed-x has no such parameter",
        ),
        (
            {"qos": {"classes": {"a": {}}}, "routing": {"classes": {"a": {"order": "edf"}}}},
            r"routing\.classes\.a\.order",
        ),
        ({"routing": {"resume": "maybe"}}, r"routing\.resume"),
        ({"routing": {"onPrefillFailure": "retry"}}, r"routing\.onPrefillFailure"),
        ({"routing": {"predictionCorrection": "on"}}, r"routing\.predictionCorrection"),
        ({"routing": {"hedge": {"risk": 11}}}, r"routing\.hedge\.risk"),
        ({"routing": {"slices": {"block": 0}}}, r"routing\.slices\.block"),
        ({"limits": {"rates": {"tokensPerMinute": 0}}}, r"limits\.rates\.tokensPerMinute"),
        ({"limits": {"maxHeaders": 1}}, r"limits\.maxHeaders"),
        ({"timeouts": {"slowReader": 0}}, r"timeouts\.slowReader"),
        ({"engine": {"type": "vllm", "proofSeconds": 0.5}}, r"engine\.proofSeconds"),
        ({"engine": {"type": "vllm", "proofSeconds": 3601}}, r"engine\.proofSeconds"),
        ({"auth": {"jwt": {**JWT, "jwksFile": "/keys"}}}, "exactly one of jwksUrl and jwksFile"),
        ({"auth": {"jwt": {**JWT, "jwksUrl": ""}}}, "exactly one of jwksUrl and jwksFile"),
        ({"auth": {"jwt": {**JWT, "jwksUrl": "http://issuer.example.com/keys"}}}, "must begin with https://"),
        ({"auth": {"jwt": {**JWT, "jwksUrl": "https://fd00::7:443/keys"}}}, "jwksUrl: must be a URL such as"),
        ({"auth": {"jwt": {**JWT, "jwksUrl": "https://[fd00::7/keys"}}}, "jwksUrl: must be a URL such as"),
        ({"auth": {"jwt": {**JWT, "jwksUrl": "https://u:p@issuer.example.com"}}}, "no user name or password"),
        ({"auth": {"jwt": {**JWT, "algorithms": ["HS256"]}}}, r"auth\.jwt\.algorithms"),
        ({"auth": {"jwt": {**JWT, "algorithms": []}}}, r"auth\.jwt\.algorithms"),
        ({"auth": {"jwt": {**JWT, "audience": []}}}, r"auth\.jwt\.audience"),
        ({"auth": {"jwt": {**JWT, "issuer": ""}}}, r"auth\.jwt\.issuer"),
        ({"tls": {"certFile": "/c"}}, r"tls\.keyFile"),
        ({"tls": {"certFile": "/c", "keyFile": "/k", "minVersion": "1.1"}}, r"tls\.minVersion"),
        ({"telemetry": {"otlpEndpoint": "collector:4317"}}, r"telemetry\.otlpEndpoint: .*must be a URL"),
        ({"telemetry": {"sampleRatio": 2}}, r"telemetry\.sampleRatio"),
        ({"accessLog": {"to": "printer"}}, r"accessLog\.to"),
        ({"engine": {"type": "magic"}}, r"engine\.type"),
        ({"engine": {"type": "sglang", "bootstrapPort": 0}}, r"engine\.bootstrapPort"),
        ({"qos": {"unknown": 1}}, r"qos\.unknown"),
        ({"limits": {"max_n": 3}}, r"limits\.max_n"),
    ],
)
def test_a_wrong_field_is_named_with_its_fix(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(**sections)


def test_an_error_shows_no_value() -> None:
    with pytest.raises(ConfigError) as caught:
        read(auth={"jwt": {**JWT, "jwksUrl": "https://user:canary@issuer.example.com"}})
    assert "canary" not in str(caught.value)


WORKERS = """
workers:
  - {name: p0, role: prefill, url: "http://127.0.0.1:8101"}
  - {name: d0, role: decode, dns: "engines.example.com:8000", degree: 1}
"""


def standalone(tmp_path: Path, workers: str | None, env: dict[str, str] | None = None) -> Any:
    (tmp_path / "router.json").write_text(json.dumps(body()))
    if workers is not None:
        (tmp_path / "workers").write_text(workers)
    flags = Flags(
        role="standalone", config=tmp_path / "router.json", listen="127.0.0.1:0", engine_url="", advertise=None,
        drain_seconds=1.0, workers=None if workers is None else tmp_path / "workers", processes=2,
    )  # fmt: skip
    return load(flags, env or {})


def test_a_standalone_router_needs_neither_token_nor_redis_nor_identity(tmp_path: Path) -> None:
    settings = standalone(tmp_path, WORKERS)
    assert [(w.name, w.role, w.url or w.dns) for w in settings.workers] == [
        ("p0", "prefill", "http://127.0.0.1:8101"),
        ("d0", "decode", "engines.example.com:8000"),
    ]
    assert (settings.redis_url, settings.processes, settings.kv_capacity_tokens) == ("memory://", 2, 0)
    assert len(settings.token) == 32
    assert settings.token != standalone(tmp_path, WORKERS).token
    assert standalone(tmp_path, '{"workers": [{"name": "d", "url": "http://[::1]:1"}]}').workers[0].role == "decode"
    with pytest.raises(ConfigError, match="WEFT_TOKEN_FILE"):
        standalone(tmp_path, WORKERS, env={"WEFT_REDIS_URL": "redis://127.0.0.1:6379/0"})


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        (None, "--workers: a standalone router needs"),
        ("workers: [", "neither JSON nor YAML"),
        ("[]", "file"),
        ("workers: []", "workers"),
        ("workers: [{name: d0}]", r"workers\.0: .*exactly one of url and dns"),
        ("workers: [{name: d0, url: 'http://a', dns: 'b:1'}]", "exactly one of url and dns"),
        ("workers: [{name: d0, url: 'a:8000'}]", "url: give one such as"),
        ("workers: [{name: d0, url: 'http://fd00::7:8000'}]", r"http://\[fd00::7\]:8000"),
        ("workers: [{name: d0, url: 'http://[fd00::7'}]", r"http://\[fd00::7\]:8000"),
        ("workers: [{name: d0, url: 'http://u:canary@a'}]", "without user name and password"),
        ("workers: [{name: d0, dns: 'a'}]", r"workers\.0\.dns"),
        ("workers: [{name: d0, url: 'http://a', role: both}]", r"workers\.0\.role"),
        ("workers: [{name: p0, url: 'http://a', role: prefill}]", "no worker has the role decode"),
        ("workers: [{name: d0, url: 'http://a'}, {name: d0, url: 'http://b'}]", "d0: two workers have this name"),
        ("workers: [{name: d0, url: 'http://a', degree: 2}]", r"d0\.degree: the profile knows only degree 1"),
    ],
)
def test_a_file_of_workers_that_cannot_be_used_is_refused(tmp_path: Path, workers: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        standalone(tmp_path, workers)
    assert "canary" not in str(caught.value)


def test_the_environments_key_file_wins_over_the_configured_one(tmp_path: Path) -> None:
    assert standalone(tmp_path, WORKERS).api_keys_file is None
    (tmp_path / "workers").write_text(WORKERS)
    assert standalone(tmp_path, WORKERS, {"WEFT_API_KEYS_FILE": "/keys"}).api_keys_file == Path("/keys")
