"""gateway.json: every mistake is refused with the field and the fix."""

import json
from pathlib import Path
from typing import Any

import pytest

from weft_router.config import ConfigError, Flags
from weft_router.config.gateway import load_gateway, read_services


def load(tmp_path: Path, env: dict[str, str] | None = None, **config: Any) -> Any:
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps(config))
    flags = Flags(
        role="gateway", config=path, listen="[::]:8080", engine_url="", advertise=None, drain_seconds=30.0,
        health_listen="[::]:8081",
    )  # fmt: skip
    return load_gateway(flags, env or {})


def test_in_a_pod_nothing_has_to_be_set(tmp_path: Path) -> None:
    found = load(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    assert found.api.url == "https://[fd00::1]:6443"
    assert str(found.api.token_file) == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert found.config.kubernetes.namespaces == ()
    assert (found.port, found.health_port) == (8080, 8081)
    assert found.token not in repr(found).encode()
    assert load(tmp_path, servicesFile="services.json").api is None


HOP = {"keyFile": "key.pem"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "servicesFile: there is no API server"),
        ({"auth": {"apiKeysFile": "keys"}}, "hop: a gateway that authenticates clients"),
        ({"hop": HOP}, "hop: there is nobody to name"),
        ({"hop": {}, "auth": {"apiKeysFile": "keys"}}, "hop.keyFile"),
        ({"limits": {"rates": {"concurrent": 1}}}, "limits.rates: services limit rates"),
        ({"service": "x"}, "service: Extra inputs"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **config)


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ([{"name": "a", "url": "ftp://x", "model": {"name": "m", "maxModelLen": 1}}], "services.0.url"),
        ([{"name": "A", "url": "http://x", "model": {"name": "m", "maxModelLen": 1}}], "services.0.name"),
        ([{"name": "a", "url": "http://x"}], "services.0.model"),
        (
            [{"name": "a", "url": "http://x", "model": {"name": "m", "maxModelLen": 1}}] * 2,
            "two services are default/a",
        ),
    ],
)
def test_mistakes_in_the_list_of_services_are_named(services: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_services(json.dumps({"services": services}).encode(), source="services.json")


def test_the_list_may_be_yaml() -> None:
    (found,) = read_services(
        b"services:\n  - {name: a, url: 'http://x', model: {name: m, maxModelLen: 10}}\n", source="services.yaml"
    )
    assert (found.namespace, found.model.name) == ("default", "m")
