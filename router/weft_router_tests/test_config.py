"""Configuration, keys and logs: what is wrong is named with its fix, and secrets stay out of lines."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_core.layouts import WORKER_ROLES, WorkerRole
from weft_router.auth.authenticator import ApiKeys, Authenticator
from weft_router.config import ConfigError, Flags, load, read_config
from weft_router.errors import UnauthorizedError
from weft_router.telemetry.logs import JsonLines
from weft_router_tests.stack import PROFILE, router_json

ENV = {"WEFT_WORKER": "svc-d1-0", "WEFT_DEGREE": "1", "POD_IP": "10.0.0.7"}


def arguments(tmp_path: Path, **changes: Any) -> Flags:
    (tmp_path / "router.json").write_text(json.dumps(router_json()))
    given = {
        "role": "decode", "config": tmp_path / "router.json", "listen": "0.0.0.0:8080",
        "engine_url": "http://127.0.0.1:8000/", "advertise": None, "drain_seconds": 30.0,
    }  # fmt: skip
    return Flags(**{**given, **changes})


def environment(tmp_path: Path, **changes: str) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text("sixteen-characters-or-more\n")
    return {**ENV, "WEFT_TOKEN_FILE": str(token), **changes}


def test_a_sidecar_knows_itself_from_its_environment(tmp_path: Path) -> None:
    found = load(arguments(tmp_path), environment(tmp_path))
    assert (found.worker, found.degree, found.url) == ("svc-d1-0", 1, "http://10.0.0.7:8080")
    assert (found.engine_url, found.token) == ("http://127.0.0.1:8000", b"sixteen-characters-or-more")
    assert found.kv_capacity_tokens == 16000
    assert found.config.routing.stats_window_seconds == 10
    assert load(arguments(tmp_path, advertise="http://127.0.0.1:1"), environment(tmp_path)).url == "http://127.0.0.1:1"
    assert load(arguments(tmp_path), environment(tmp_path, POD_IP="fd00::1")).url == "http://[fd00::1]:8080"
    assert (load(arguments(tmp_path, listen="[::]:8080"), environment(tmp_path)).host) == "::"
    coordinator = load(arguments(tmp_path, role="coordinator"), environment(tmp_path, WEFT_DEGREE=""))
    assert (coordinator.degree, coordinator.kv_capacity_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("env", "args", "names"),
    [
        ({"WEFT_WORKER": ""}, {}, "WEFT_WORKER"),
        ({"WEFT_WORKER": "a worker"}, {}, "WEFT_WORKER"),
        ({"WEFT_WORKER": "d" * 254}, {}, "WEFT_WORKER"),
        ({"WEFT_DEGREE": "two"}, {}, "WEFT_DEGREE"),
        ({"WEFT_DEGREE": "0"}, {}, "WEFT_DEGREE"),
        ({"WEFT_DEGREE": "8"}, {}, "WEFT_DEGREE"),
        ({"POD_IP": ""}, {}, "POD_IP"),
        ({"WEFT_TOKEN_FILE": "/nowhere"}, {}, "WEFT_TOKEN_FILE"),
        ({"WEFT_ENGINE_PROOF_FILE": "/nowhere"}, {}, "WEFT_ENGINE_PROOF_FILE"),
        ({"WEFT_KV_PORT": "65536"}, {}, "WEFT_KV_PORT"),
        ({"WEFT_KV_DISK_PORT": "no"}, {}, "WEFT_KV_DISK_PORT"),
        ({"WEFT_KV_TRANSPORT": "tcp"}, {}, "WEFT_KV_TRANSPORT"),
        ({"WEFT_KV_EVENTS_PORT": "events"}, {}, "WEFT_KV_EVENTS_PORT"),
        ({"WEFT_KV_EVENTS_PORT": "1000"}, {}, "WEFT_KV_EVENTS_PORT"),
        ({"WEFT_KV_EVENTS_PORT": "65536"}, {}, "WEFT_KV_EVENTS_PORT"),
        ({"WEFT_ENGINE_PROOF_FILE": os.devnull}, {}, "WEFT_ENGINE_PROOF_FILE"),
        ({}, {"listen": "8080"}, "--listen"),
        ({}, {"listen": "0.0.0.0:99999"}, "--listen"),
        ({}, {"listen": "fd00::7:8080"}, r"--listen: .*\[fd00::7\]:8080"),
        ({}, {"health_listen": ":::8081"}, "--health-listen"),
        ({}, {"advertise": "10.0.0.1:80"}, "--advertise"),
        ({}, {"advertise": "https://10.0.0.1:80"}, "--advertise"),
        ({}, {"advertise": "http://10.0.0.1:80/path"}, "--advertise"),
        ({}, {"advertise": "http://fd00::7:8080"}, r"--advertise .*http://\[fd00::7\]:8080"),
        ({}, {"config": Path("/nowhere")}, "--config"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, env: dict[str, str], args: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        load(arguments(tmp_path, **args), environment(tmp_path, **env))


def test_a_sidecar_is_costed_as_its_pool(tmp_path: Path) -> None:
    other = {**PROFILE, "gpu": "fast", "degrees": [{**PROFILE["degrees"][0], "degree": 2, "kvCapacityTokens": 500}]}
    flags = arguments(tmp_path)
    text = json.dumps({**router_json(), "profiles": {"a": PROFILE, "b": other, "c": other}})
    (tmp_path / "router.json").write_text(text)
    found = load(flags, environment(tmp_path, WEFT_POOL="b", WEFT_DEGREE="2"))
    assert (found.profile.gpu, found.kv_capacity_tokens) == ("fast", 500)
    assert found.profile_of("c") is found.profile, "equal profiles are one object"
    assert found.profile_of("a").gpu == "none"
    assert found.profile_of("gone") is found.profile
    with pytest.raises(ConfigError, match="the profile of fast knows only degree 2"):
        load(flags, environment(tmp_path, WEFT_POOL="b"))
    bad = {**router_json(), "profiles": {"a": {**PROFILE, "kvBytesPerToken": -1}}}
    (tmp_path / "router.json").write_text(json.dumps(bad))
    with pytest.raises(ConfigError, match=r"profiles\.a\.kvBytesPerToken"):
        load(flags, environment(tmp_path, WEFT_POOL="b", WEFT_DEGREE="2"))


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / "token").write_text("short")
    with pytest.raises(ConfigError, match="at least 16"):
        load(arguments(tmp_path), env)


@pytest.mark.parametrize(
    ("section", "fields", "names"),
    [
        ("routing", {"policy": "magic"}, "routing.policy"),
        ("routing", {"alpha": 0}, "routing.alpha"),
        ("routing", {"window": 7}, "routing.window"),
        ("routing", {"unknown": 1}, "routing.unknown"),
        ("slo", {"ttft": -1}, "slo.ttft"),
        ("model", {"maxModelLen": 0}, "model.maxModelLen"),
        ("engine", {"type": "magic"}, "engine.type"),
        ("profile", {"kvBytesPerToken": -1}, "profile.kvBytesPerToken"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, section: str, fields: dict[str, Any], names: str) -> None:
    raw = json.dumps(router_json(**{section: fields}))
    with pytest.raises(ConfigError, match=names):
        read_config(raw.encode(), source="router.json").cost_profile()


def test_a_file_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"router\.json"):
        read_config(b"{", source="router.json")


def test_keys_are_read_again_and_a_broken_file_keeps_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# comment\n\n  one  \n")
    keys = ApiKeys(path)
    access = Authenticator(keys)

    def tenant(header: str | None) -> str:
        return access.principal(header, 0.0).tenant

    one = tenant("Bearer one")
    assert tenant("bearer  one") == one
    path.write_text("one\nanother-key\n")
    keys.reload()
    assert tenant("Bearer another-key") != one
    path.unlink()
    keys.reload()
    assert tenant("Bearer one") == one
    for header in (None, "", "one", "Basic one", "Bearer ", "Bearer unknown", "Bearer # comment"):
        with pytest.raises(UnauthorizedError):
            tenant(header)
    assert Authenticator(None).principal(None, 0.0).tenant == "default"


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nothing\n")
    for path in (tmp_path / "keys", tmp_path / "absent"):
        with pytest.raises(ConfigError, match="WEFT_API_KEYS_FILE"):
            ApiKeys(path)


def test_log_lines_are_json_with_an_event_and_facts() -> None:
    record = logging.LogRecord("weft", logging.INFO, "f", 1, "worker_found", None, None)
    record.worker = "d0"
    line = orjson.loads(JsonLines().format(record))
    assert (line["event"], line["worker"], line["level"]) == ("worker_found", "d0", "info")


@pytest.mark.parametrize("role", WORKER_ROLES)
def test_the_role_of_a_worker_is_in_a_file(tmp_path: Path, role: WorkerRole) -> None:
    file = tmp_path / "role"
    file.write_text(f"{role}\n")
    found = load(arguments(tmp_path, role="worker"), environment(tmp_path, WEFT_ROLE_FILE=str(file)))
    assert (found.role, found.role_file) == (role, file)
    fixed = load(arguments(tmp_path, role=role), environment(tmp_path, WEFT_ROLE_FILE=str(file)))
    assert (fixed.role, fixed.role_file) == (role, None)


@pytest.mark.parametrize("content", [None, "", "butler", "decode" + " " * 100 + "x", "\xff"])
def test_a_file_without_a_role_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "role"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"WEFT_ROLE_FILE={file}"):
        load(arguments(tmp_path, role="worker"), environment(tmp_path, WEFT_ROLE_FILE=str(file)))


def test_a_worker_whose_role_may_change_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="WEFT_ROLE_FILE"):
        load(arguments(tmp_path, role="worker"), environment(tmp_path))


def test_role_files_of_a_standalone_router_are_beside_its_workers_file(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    one = {"name": "a", "role": "prefill", "url": "http://127.0.0.1:1", "roleFile": "role-a"}
    file.write_text(json.dumps({"workers": [one]}))
    found = load(
        arguments(tmp_path, role="standalone", workers=file), environment(tmp_path, WEFT_REDIS_URL="memory://")
    )
    assert found.workers[0].role_file == tmp_path / "role-a"
    many = {"name": "a", "dns": "engines:80", "roleFile": "role-a"}
    file.write_text(json.dumps({"workers": [many]}))
    with pytest.raises(ConfigError, match="roleFile"):
        load(arguments(tmp_path, role="standalone", workers=file), environment(tmp_path, WEFT_REDIS_URL="memory://"))
