"""Changing the configuration of a running router: what may change is taken over, anything else is said and left."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from weft_router.config import ConfigError, Flags, RouterConfig, load
from weft_router.config import live as module
from weft_router.config.live import LiveConfig, combined
from weft_router_tests.test_config_sections import body

BASE = body(routing={"policy": "weft"}, qos={"classes": {"gold": {"priority": 1}}})


def write(path: Path, value: object) -> None:
    """Replace a file as a mounted ConfigMap is: by renaming."""
    fresh = path.with_suffix(".new")
    fresh.write_text(value if isinstance(value, str) else json.dumps(value))
    fresh.rename(path)


def started(tmp_path: Path, over: Any = None) -> LiveConfig:
    main, live = tmp_path / "router.json", tmp_path / "live.json"
    write(main, BASE)
    if over is not None:
        write(live, over)
    current = combined(main.read_bytes(), None if over is None else live.read_bytes(), source="x")
    return LiveConfig(main, None if over is None else live, current)


def test_the_file_beside_router_json_wins_by_sections() -> None:
    over = {"routing": {"policy": "threshold"}, "slo": {"ttft": 1, "itl": 0.1}}
    config = combined(json.dumps(BASE).encode(), json.dumps(over).encode(), source="live.json")
    assert (config.routing.policy, config.routing.session_ttl_seconds, config.slo.ttft) == ("threshold", 3600, 1.0)
    assert config.qos.known() == {"default", "gold"}
    for wrong, says in (({"engine": {}}, "live.json: engine: may only stand in router.json"), ([], "a JSON object")):
        with pytest.raises(ConfigError, match=says):
            combined(json.dumps(BASE).encode(), json.dumps(wrong).encode(), source="live.json")
    with pytest.raises(ConfigError, match=r"live\.json: is not valid JSON"):
        combined(json.dumps(BASE).encode(), b"{", source="live.json")


def test_a_changed_policy_slo_or_class_is_taken_over_once(tmp_path: Path) -> None:
    live = started(tmp_path, {})
    assert live.reload() is None
    write(tmp_path / "live.json", {"routing": {"policy": "remote-jsq"}, "slo": {"ttft": 9, "itl": 1}})
    fresh = live.reload()
    assert fresh is not None
    assert fresh is live.current
    assert (fresh.routing.policy, fresh.slo.ttft) == ("remote-jsq", 9.0)
    assert live.reload() is None
    write(tmp_path / "live.json", {"routing": {"policy": "remote-jsq"}, "slo": {"itl": 1.0, "ttft": 9.0}})
    assert live.reload() is None, "the same in other words"


def test_router_json_itself_may_change_where_there_is_no_other_file(tmp_path: Path) -> None:
    live = started(tmp_path)
    write(tmp_path / "router.json", {**BASE, "qos": {"classes": {"gold": {"priority": 5}}}})
    fresh = live.reload()
    assert fresh is not None
    assert fresh.qos.of("gold").priority == 5


@pytest.mark.parametrize(
    ("change", "event", "names"),
    [
        ({"routing": {"policy": "magic"}}, "configuration_refused", "routing.policy"),
        ({"qos": {"defaultClass": "none"}}, "configuration_refused", "defaultClass"),
        ("{", "configuration_refused", "JSON"),
        ({"engine": {"type": "vllm"}}, "configuration_needs_restart", "engine"),
        ({"limits": {"maxN": 3}}, "configuration_needs_restart", "limits"),
        ({"model": {"name": "other", "maxModelLen": 4096}}, "configuration_needs_restart", "model"),
        ({"routing": {"policy": "weft", "seed": 1}}, "configuration_needs_restart", "routing.seed"),
        (
            {"routing": {"policy": "weft", "prefillConcurrency": 2}},
            "configuration_needs_restart",
            "prefill_concurrency",
        ),
    ],
)
def test_what_cannot_be_taken_over_is_said_once_and_the_old_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, event: str, names: str
) -> None:
    live = started(tmp_path)
    before = live.current
    write(tmp_path / "router.json", change if isinstance(change, str) else {**BASE, **change})
    assert live.reload() is None
    assert live.reload() is None
    assert live.current is before
    (record,) = caplog.records
    assert record.message == event
    assert names in repr(record.__dict__)
    write(tmp_path / "router.json", {**BASE, "slo": {"ttft": 3, "itl": 1}})
    fresh = live.reload()
    assert fresh is not None, "the next change may be a good one"
    assert fresh.slo.ttft == 3.0


def test_a_file_that_is_gone_for_a_moment_is_read_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = started(tmp_path)
    text = (tmp_path / "router.json").read_text()
    (tmp_path / "router.json").unlink()
    assert live.reload() is None
    write(tmp_path / "router.json", text.replace('"ttft": 2.0', '"ttft": 4.0'))
    fresh = live.reload()
    assert fresh is not None
    assert fresh.slo.ttft == 4.0
    assert [record.message for record in caplog.records] == ["configuration_unreadable"]


def test_the_age_is_that_of_the_configuration_in_force(tmp_path: Path) -> None:
    live = started(tmp_path)
    path = tmp_path / "router.json"

    def written(content: Any, seconds_ago: float) -> float:
        write(path, content)
        os.utime(path, (time.time() - seconds_ago,) * 2)
        live.reload()
        return live.age()

    assert 0.0 <= live.age() < 60.0
    assert 600.0 <= written({**BASE, "slo": {"ttft": 3, "itl": 1}}, 600) < 660.0
    assert 600.0 <= written("{", 0) < 660.0, "what is refused is not active"
    path.unlink()
    assert live.reload() is None
    assert live.age() >= 600.0
    assert 0.0 <= written({**BASE, "slo": {"ttft": 4, "itl": 1}}, 0) < 60.0
    assert 120.0 <= written({**BASE, "slo": {"ttft": 4, "itl": 1}}, 120) < 180.0, "written again as it was"


async def test_changes_are_handed_over_and_one_that_fails_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.005)
    live = started(tmp_path)
    taken: asyncio.Queue[float] = asyncio.Queue()

    def take(config: RouterConfig) -> None:
        taken.put_nowait(config.slo.ttft)
        if config.slo.ttft == 3.0:
            raise RuntimeError("cannot")

    task = asyncio.create_task(live.run(take))
    for ttft in (3.0, 4.0):
        write(tmp_path / "router.json", {**BASE, "slo": {"ttft": ttft, "itl": 1}})
        async with asyncio.timeout(60):
            assert await taken.get() == ttft
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_settings_know_both_files(tmp_path: Path) -> None:
    write(tmp_path / "router.json", BASE)
    write(tmp_path / "live.json", {"slo": {"ttft": 7, "itl": 1}})
    (tmp_path / "token").write_text("sixteen-characters-or-more")
    flags = Flags(
        role="coordinator", config=tmp_path / "router.json", listen="127.0.0.1:0", engine_url="", advertise=None,
        drain_seconds=1.0,
    )  # fmt: skip
    env = {"WEFT_TOKEN_FILE": str(tmp_path / "token"), "WEFT_LIVE_FILE": str(tmp_path / "live.json")}
    found = load(flags, env)
    assert (found.config.slo.ttft, found.live_file, found.config_file) == (7.0, tmp_path / "live.json", flags.config)
    assert load(flags, {"WEFT_TOKEN_FILE": str(tmp_path / "token")}).live_file is None
    with pytest.raises(ConfigError, match="WEFT_LIVE_FILE=/nowhere: cannot be read"):
        load(flags, {**env, "WEFT_LIVE_FILE": "/nowhere"})


def test_a_redis_url_with_a_password_comes_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path / "router.json", BASE)
    (tmp_path / "token").write_text("sixteen-characters-or-more")
    (tmp_path / "url").write_text("rediss://weft:kanarie@redis.example.com:6379/0\n")
    flags = Flags(
        role="coordinator", config=tmp_path / "router.json", listen="127.0.0.1:0", engine_url="", advertise=None,
        drain_seconds=1.0,
    )  # fmt: skip
    env = {"WEFT_TOKEN_FILE": str(tmp_path / "token"), "WEFT_REDIS_URL_FILE": str(tmp_path / "url")}
    found = load(flags, env)
    assert found.redis_url == "rediss://weft:kanarie@redis.example.com:6379/0"
    assert "kanarie" not in repr(found)
    assert "sixteen" not in repr(found)
    with pytest.raises(ConfigError, match="WEFT_REDIS_URL_FILE=/nowhere: cannot be read"):
        load(flags, {**env, "WEFT_REDIS_URL_FILE": "/nowhere"})
