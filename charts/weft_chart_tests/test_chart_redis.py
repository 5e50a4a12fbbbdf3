"""The chart's Redis, run as it is rendered: who may do what without and with the operator's password."""

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError

from redis import Redis
from weft_chart_tests.rendering import CHART, NAMESPACE, REGISTRY, Helm, Manifest, Render, arguments
from weft_e2e.waiting import until
from weft_router_tests.stack import free_port

PASSWORD = "canary of the operator"


def redis_pod(render: Render, *values: str) -> Manifest:
    spec: Manifest = render(*values).get("Deployment", "weft-redis")["spec"]["template"]["spec"]
    return spec


def test_the_password_is_random_and_nowhere_but_in_its_secret(helm: Helm, render: Render) -> None:
    words = ["template", "weft", str(CHART), "--namespace", NAMESPACE, *arguments([REGISTRY, "crds.install=false"])]
    found = []
    for _ in range(2):
        text = helm(*words).stdout
        (line,) = (line for line in text.splitlines() if line.startswith("  password: "))
        word = line.removeprefix("  password: ")
        assert len(base64.b64decode(word)) == 40
        assert text.count(word) == 1
        assert base64.b64decode(word).decode() not in text
        found.append(word)
    assert found[0] != found[1]
    for item in (redis_pod(render), render().get("Deployment", "weft-operator")["spec"]["template"]["spec"]):
        assert any(volume.get("secret", {}).get("secretName") == "weft-redis-operator" for volume in item["volumes"])
    assert all(volume["name"] != "password" for volume in redis_pod(render)["containers"][0]["volumeMounts"])


def test_a_secret_of_ones_own_takes_the_place_of_the_charts(render: Render) -> None:
    rendered = render("redis.embedded.existingSecret=mine")
    assert rendered.of_kind("Secret") == []
    assert "weft-redis-operator" not in rendered.text
    assert rendered.text.count("secretName: mine") == 2


def test_required_users_reach_the_operator(render: Render, refusal: Callable[..., str]) -> None:
    (container,) = render("redis.perServiceUsers=required").get("Deployment", "weft-operator")["spec"]["template"][
        "spec"
    ]["containers"]
    assert {"name": "WEFT_REDIS_USERS", "value": "required"} in container["env"]
    assert "perServiceUsers" in refusal(REGISTRY, "redis.perServiceUsers=maybe")


@pytest.fixture
def server(render: Render, tmp_path: Path) -> Iterator[Callable[[str], Redis]]:
    """Run what the pod runs, in its order, and give clients by their user and password."""
    pod, port = redis_pod(render), free_port()
    (tmp_path / "data").mkdir()
    (tmp_path / "password").write_text(PASSWORD + "\n")

    def here(words: list[str]) -> list[str]:
        return [
            word.replace("/etc/weft-redis/password", str(tmp_path / "password")).replace(
                "/data", str(tmp_path / "data")
            )
            for word in words
        ]

    (init,) = pod["initContainers"]
    command = [sys.executable if word == "python" else word for word in init["command"]]
    subprocess.run([*command, *here(init["args"])], check=True, timeout=60)
    (container,) = pod["containers"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*container["command"], *here(container["args"]), "--port", str(port), "--bind", "127.0.0.1"],
            stdout=log,
            stderr=log,
        )
    clients: list[Redis] = []

    def client(user: str) -> Redis:
        clients.append(Redis.from_url(f"redis://{user}127.0.0.1:{port}/0"))
        return clients[-1]

    def ready() -> bool:
        probe = container["readinessProbe"]["exec"]["command"]
        done = subprocess.run(
            [probe[0], "-p", str(port), *probe[1:]], capture_output=True, text=True, timeout=30, check=False
        )
        return (done.returncode, done.stdout.strip(), done.stderr) == (0, "PONG", "")

    try:
        until(ready, what="a PONG for the probe", timeout_s=60)
        yield client
    finally:
        for one in clients:
            one.close()
        process.kill()
        process.wait(30)


@pytest.mark.component
def test_whoever_has_no_password_may_do_nothing_but_ping(server: Callable[[str], Redis], tmp_path: Path) -> None:
    heartbeat = ("SET", "weft:{team/chat}:worker:evil", "x")
    with pytest.raises(AuthenticationError):
        server("").execute_command(*heartbeat)  # type: ignore[no-untyped-call]
    for user in ("default:@", "operator:wrong@", "default:any@"):
        with pytest.raises(AuthenticationError):
            server(user).ping()
    assert server("probe:any@").ping()
    with pytest.raises(NoPermissionError):
        server("probe:any@").execute_command(*heartbeat)  # type: ignore[no-untyped-call]
    assert server(f"operator:{PASSWORD.replace(' ', '%20')}@").set("weft:x", "y")
    held = tmp_path / "data" / "users.acl"
    assert PASSWORD not in held.read_text()
    assert not held.stat().st_mode & 0o007


@pytest.mark.component
def test_a_full_memory_drops_old_bindings_and_no_heartbeat(server: Callable[[str], Redis]) -> None:
    redis = server(f"operator:{PASSWORD.replace(' ', '%20')}@")
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] + 2_000_000)

    def beat() -> None:  # what a worker writes each second, and a coordinator reads twice
        redis.set("weft:{team/chat}:worker:d0", "heartbeat", ex=5)
        redis.sadd("weft:{team/chat}:workers", "d0")
        redis.smembers("weft:{team/chat}:workers")
        redis.get("weft:{team/chat}:worker:d0")

    for _ in range(60):  # the first minute, with one coordinator
        beat()
    with redis.pipeline(transaction=False) as pipe:
        for number in range(20_000):  # twenty times the memory within seconds
            pipe.set(f"weft:{{team/chat}}:bind:{number}", "x" * 2000, ex=3600)
            if number % 100 == 99:
                pipe.execute()
                assert redis.get("weft:{team/chat}:worker:d0") == b"heartbeat"
                beat()
    assert redis.smembers("weft:{team/chat}:workers") == {b"d0"}
    assert redis.info("stats")["evicted_keys"] > 15_000
