"""The operator's settings come from the environment; what is wrong is named."""

import json
import logging
from pathlib import Path

import pytest

from weft_cli.running import run
from weft_operator.controllers import cli
from weft_operator.logs import JsonLines
from weft_operator.settings import PROMETHEUS, SettingsError, settings_from_env

LEAST = {"WEFT_ROUTER_IMAGE": "router:1"}


def test_defaults() -> None:
    found = settings_from_env(LEAST)
    assert found.redis_url == "redis://weft-redis.weft-system:6379/0"
    assert (found.watch_namespaces, found.planner_deadline, found.resync, found.port) == ((), 180.0, 60.0, 8081)


def test_what_is_given_is_taken() -> None:
    found = settings_from_env(
        {
            **LEAST,
            "WEFT_WATCH_NAMESPACES": "a, b",
            "WEFT_PLANNER_DEADLINE_SECONDS": "12.5",
            "WEFT_OPERATOR_PORT": "9000",
            "WEFT_ROUTER_UPGRADE": "AtOnce",
            "WEFT_PROMETHEUS_URL": "http://prometheus:9090",
        }
    )
    assert (found.prometheus_url, settings_from_env(LEAST).prometheus_url) == ("http://prometheus:9090", "")
    assert (found.watch_namespaces, found.planner_deadline, found.port) == (("a", "b"), 12.5, 9000)
    assert (found.router_upgrade, settings_from_env(LEAST).router_upgrade) == ("AtOnce", "WhenAsked")


def test_the_platform_is_told_by_true_or_false() -> None:
    assert settings_from_env(LEAST).openshift is False
    assert settings_from_env({**LEAST, "WEFT_OPENSHIFT": "true"}).openshift is True
    with pytest.raises(SettingsError, match="WEFT_OPENSHIFT='auto'"):
        settings_from_env({**LEAST, "WEFT_OPENSHIFT": "auto"})


def test_who_scrapes_is_a_list_of_peers() -> None:
    assert settings_from_env(LEAST).metrics_from == PROMETHEUS
    peer = {"podSelector": {"matchLabels": {"app": "agent"}}}
    assert settings_from_env({**LEAST, "WEFT_METRICS_FROM": json.dumps([peer])}).metrics_from == (peer,)
    for wrong in ("{}", "[1]", "[{}]", "prometheus"):
        with pytest.raises(SettingsError, match="WEFT_METRICS_FROM"):
            settings_from_env({**LEAST, "WEFT_METRICS_FROM": wrong})


def test_a_redis_url_with_a_password_comes_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text("rediss://weft:canary@redis.example.com:6379/0\n")
    found = settings_from_env({**LEAST, "WEFT_REDIS_URL_FILE": str(path), "WEFT_REDIS_URL": "redis://other:6379/0"})
    assert found.redis_url == "rediss://weft:canary@redis.example.com:6379/0"
    assert "canary" not in repr(found)
    path.write_text("canary")
    for wrong, words in ((str(path), "must hold a URL"), ("/nowhere", "cannot be read")):
        with pytest.raises(SettingsError, match=words) as caught:
            settings_from_env({**LEAST, "WEFT_REDIS_URL_FILE": wrong})
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({**LEAST, "WEFT_PROMETHEUS_URL": "prometheus:9090"}, "WEFT_PROMETHEUS_URL"),
        ({**LEAST, "WEFT_PROMETHEUS_URL": "http://me:word@prometheus"}, "without a user name"),
        ({"WEFT_ROUTER_IMAGE": " "}, "WEFT_ROUTER_IMAGE is not set"),
        ({**LEAST, "WEFT_PLANNER_DEADLINE_SECONDS": "soon"}, "WEFT_PLANNER_DEADLINE_SECONDS='soon'"),
        ({**LEAST, "WEFT_ROUTER_UPGRADE": "Never"}, "give WhenAsked or AtOnce"),
        ({**LEAST, "WEFT_OPERATOR_INSTANCE": "Canary_1"}, "WEFT_OPERATOR_INSTANCE='Canary_1'"),
        ({**LEAST, "WEFT_RESYNC_SECONDS": "0"}, "WEFT_RESYNC_SECONDS='0'"),
        ({**LEAST, "WEFT_OPERATOR_PORT": "99999"}, "WEFT_OPERATOR_PORT='99999'"),
    ],
)
def test_what_is_wrong_is_named(env: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_from_env(env)


def test_the_command_exits_with_2_for_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WEFT_ROUTER_IMAGE", raising=False)
    assert run(cli.operator, [], prog="weft operator") == 2
    assert "WEFT_ROUTER_IMAGE is not set" in capsys.readouterr().err


def test_a_log_line_is_one_json_object() -> None:
    record = logging.makeLogRecord(
        {"name": "weft", "levelname": "INFO", "msg": "applied", "object": "Pod ns/a", "tries": 2}
    )
    line = json.loads(JsonLines().format(record))
    assert {"event": "applied", "object": "Pod ns/a", "tries": 2, "level": "info"}.items() <= line.items()


def test_the_password_of_the_charts_redis_comes_from_a_file_beside_its_url(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("a@b/c\n")
    told = {**LEAST, "WEFT_REDIS_PASSWORD_FILE": str(path)}
    found = settings_from_env({**told, "WEFT_REDIS_URL": "redis://operator@[fd00::1]:6379/0"})
    assert found.redis_url == "redis://operator:a%40b%2Fc@[fd00::1]:6379/0"
    assert "a%40b" not in repr(found)
    for url in ("redis://redis:6379/0", "redis://operator:word@redis:6379/0"):
        with pytest.raises(SettingsError, match="WEFT_REDIS_PASSWORD_FILE"):
            settings_from_env({**told, "WEFT_REDIS_URL": url})
    path.write_text("")
    with pytest.raises(SettingsError, match="is empty"):
        settings_from_env({**told, "WEFT_REDIS_URL": "redis://operator@redis:6379/0"})


def test_services_have_redis_users_unless_told_otherwise() -> None:
    assert settings_from_env(LEAST).redis_users == "auto"
    assert settings_from_env({**LEAST, "WEFT_REDIS_USERS": "required"}).redis_users == "required"
    with pytest.raises(SettingsError, match="WEFT_REDIS_USERS"):
        settings_from_env({**LEAST, "WEFT_REDIS_USERS": "maybe"})
    peer = '[{"podSelector": {}}]'
    assert settings_from_env({**LEAST, "WEFT_REDIS_PEERS": peer}).redis_peers == ({"podSelector": {}},)
    assert settings_from_env(LEAST).redis_peers == ()
