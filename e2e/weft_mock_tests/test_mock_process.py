"""The engine as its own process, as it runs in a container."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft_cli.running import run
from weft_core.profile_json import profile_to_json
from weft_mock.cli import mock_engine
from weft_mock.config import ConfigError
from weft_mock_tests.engines import MODEL, config, profile

# An engine's start alone may take many seconds on a busy machine.


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    assert isinstance(port, int)
    return port


@contextlib.contextmanager
def engine(folder: Path, *flags: str, port: int = 0) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start an engine and wait for its health."""
    file = folder / "profile.json"
    file.write_text(json.dumps(profile_to_json(profile())))
    port = port or free_port()
    command = [sys.executable, "-m", "weft_mock", "--model", MODEL, "--profile", str(file), "--degree", "1"]
    command += ["--listen", f"127.0.0.1:{port}", "--side-channel-port", str(free_port()), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while not healthy(port):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield port, process
    finally:
        process.kill()
        process.communicate()


def healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def completion(port: int, **fields: object) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", **fields}))
        with connection.getresponse() as reply:
            yield reply


@pytest.mark.component
def test_an_engine_listens_on_every_address_of_both_families(tmp_path: Path) -> None:
    port = free_port()
    with engine(tmp_path, "--listen", f"[::]:{port}", port=port), socket.create_connection(("::1", port), timeout=10):
        pass  # and on 127.0.0.1, where its health was asked for


@pytest.mark.component
def test_sigterm_lets_live_requests_end(tmp_path: Path) -> None:
    with engine(tmp_path, "--time-scale", "5") as (port, process):
        with completion(port, max_tokens=60, stream=True) as reply:
            reply.readline()
            process.send_signal(signal.SIGTERM)
            assert b"[DONE]" in reply.read()
        assert process.wait(10) == 0
        assert process.stderr is not None
        events = [json.loads(line) for line in process.stderr]
        assert [e["event"] for e in events] == ["engine_started", "engine_draining", "engine_stopped"]
        assert events[0]["kv_tokens"] == 4096


@pytest.mark.component
def test_an_engine_serves_beside_connectors_that_it_does_not_model(tmp_path: Path) -> None:
    offloading = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    config = {**offloading, "kv_connector_extra_config": {"cpu_bytes_to_use": 2**36}}
    with (
        engine(tmp_path, "--kv-transfer-config", json.dumps(config)) as (port, _),
        completion(port, max_tokens=2) as reply,
    ):
        assert reply.status == 200


@pytest.mark.component
def test_sigterm_ends_an_idle_engine_at_once(tmp_path: Path) -> None:
    with engine(tmp_path) as (_, process):
        began = time.monotonic()
        process.terminate()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 10


@pytest.mark.component
def test_the_process_dies_when_a_fault_says_so(tmp_path: Path) -> None:
    with engine(tmp_path, "--fault", '{"die_at_token": 3}') as (port, process):
        with completion(port, max_tokens=60, stream=True) as reply:
            with pytest.raises(http.client.IncompleteRead) as caught:
                reply.read()
            assert caught.value.partial.count(b"data: ") == 3
        assert process.wait(10) == 70


@pytest.mark.component
def test_a_process_speaks_the_protocol_it_was_told(tmp_path: Path) -> None:
    flags = ("--protocol", "sglang", "--role", "decode", "--meeting-seconds", "1", "--scheduling-policy", "priority")
    with engine(tmp_path, *flags) as (port, _), completion(port, max_tokens=2, priority=3) as reply:
        assert reply.status == 400
        assert json.loads(reply.read())["message"] == "Disaggregated request received without bootstrap room id"


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--degree", "3"], "degree 3"),
        (["--protocol", "sglang", "--bidirectional"], "--bidirectional"),
        (["--protocol", "openai", "--role", "decode"], "--role"),
        (["--time-scale", "0"], "--time-scale"),
        (["--listen", "8000"], "--listen"),
        (["--kv-capacity", "8"], "--kv-capacity"),
        (["--kv-transfer-config", "{}"], "--kv-transfer-config: kv_connector"),
        (["--kv-transfer-config", "{}", "--protocol", "sglang"], "--kv-transfer-config: only with --protocol vllm"),
        (["--kv-events-config", "{}"], "--kv-events-config: enable_kv_cache_events"),
        (["--max-model-len", "99999"], "--max-model-len"),
        (["--fault", '{"x": 1}'], "unknown fault"),
        (["--fault", "5"], "--fault"),
        (["--weights", "/nowhere"], "--weights: /nowhere holds no config.json and safetensors"),
        (["--profile", os.devnull], "--profile: no JSON"),
        (["--profile", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(
    tmp_path: Path, flags: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile_to_json(profile())))
    arguments = ["--model", "m", "--profile", str(file), "--degree", "1", *flags]
    assert run(mock_engine, arguments, prog="weft mock-engine") == 2
    said = capsys.readouterr().err
    assert word in said
    assert said.count("\n") == 1


def test_several_names_may_follow_one_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(mock_engine, "callback", lambda **given: seen.append(given["served_names"]))
    least = ["--model", "m", "--profile", "p.json", "--degree", "1"]
    for words in (["--served-model-name", "a", "b"], ["--served-model-name=a", "--served-model-name", "b"]):
        assert run(mock_engine, [*words, *least], prog="weft mock-engine") == 0
        assert run(mock_engine, [*least, *words], prog="weft mock-engine") == 0
    assert seen == [("a", "b")] * 4
    assert run(mock_engine, [*least, "--served-model-name"], prog="weft mock-engine") == 2


def test_impossible_configurations_name_their_flag() -> None:
    for name, value, flag in (
        ("block_size", 0, "--block-size"),
        ("chunk", 0, "--chunk"),
        ("max_sequences", 0, "--max-num-seqs"),
        ("lease_seconds", float("inf"), "--kv-lease-seconds"),
        ("ttl_seconds", -1.0, "--handle-ttl-seconds"),
        ("kv_capacity", -5, "--kv-capacity"),
    ):
        with pytest.raises(ConfigError, match=flag):
            config(**{name: value})
