"""The support bundle: what is in it, and that no planted secret, prompt or token is."""

import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from weft_operator.commands.redaction import REDACTED, redact, redact_log, redact_object
from weft_operator.commands.support_bundle import support_bundle
from weft_operator_tests.served import APPS, PAGE, ROOT, Served, call, refusal, serving

pytestmark = pytest.mark.component

PLANTED = {
    "internal token": "b1946ac92492d2347c6235b4d2611184",
    "api key": "sk-live-51HxYzAbCdEf",
    "hub token": "hf_QwErTyUiOpAsDfGh",
    "jwt": "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
    "password": "hunter2hunter2",
    "url password": "redispass99",
    "plain secret value": "violet-unicorn-balloon",
    "variable": "literal-env-value-1",
    "flag": "flag-secret-value-2",
    "annotation": "annotated-secret-3",
    "private key": "MIIEvQIBADANBgkqhkiG9w0BAQ",
    "prompt": "please summarise my medical history",
    "answer": "the patient is said to be unwell",
    "second line": "which nobody else may ever read",
    "third line": "nor the line after it",
}


def secret(**values: str) -> dict[str, object]:
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(monkeypatch) as served:
        plant(served)
        yield served


def plant(server: Served) -> None:
    """Put every planted word where it may be in a cluster."""
    item = server.service
    item["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": PLANTED["plain secret value"]}),
        "example.com/token": f"token={PLANTED['annotation']}",
    }
    item["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    item["spec"]["engine"] = {
        "type": "vllm",
        "args": ["--api-key", PLANTED["flag"], f"--hf-token={PLANTED['hub token']}", "--max-num-seqs=64"],
        "env": [{"name": "HF_TOKEN", "value": PLANTED["variable"]}, {"name": "OMP_NUM_THREADS", "value": "8"}],
    }
    item["spec"]["coordinator"] = {"auth": {"apiKeySecretRef": {"name": "keys", "key": "all"}}}
    item["status"]["conditions"][0]["message"] = f"no answer from http://me:{PLANTED['password']}@prometheus:9090"
    server.on("GET", f"{ROOT}/secrets/demo-token", secret(token=PLANTED["internal token"]))
    server.on("GET", f"{ROOT}/secrets/keys", secret(all=f"{PLANTED['plain secret value']}\nother-key-value"))
    engine = {
        "name": "engine",
        "args": ["--api-key", PLANTED["flag"]],
        "env": [
            {"name": "WEFT_REDIS_URL", "value": f"redis://:{PLANTED['url password']}@redis:6379/0"},
            {"name": "WEFT_ROLE", "value": "decode"},
            {"name": "PASSWORD", "value": PLANTED["variable"]},
            {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "all"}}},
        ],
    }
    server.pods[2]["spec"]["containers"] = [engine]
    server.pods[2]["status"]["containerStatuses"] = [{"name": "engine", "restartCount": 2}]
    spec = {"engine": {"env": [{"name": "X", "value": PLANTED["variable"]}]}}
    config = {
        "metadata": {"name": "demo-plan", "namespace": "default"},
        "data": {
            "spec.json": json.dumps(spec),
            "keys.pem": f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED['private key']}\n-----END RSA PRIVATE KEY-----",
            "router.json": json.dumps({"redisUrl": f"redis://u:{PLANTED['url password']}@redis", "tokens": 4}),
        },
    }
    server.on("GET", f"{ROOT}/configmaps", {"items": [config]})
    for kind in ("services", "serviceaccounts"):
        server.on("GET", f"{ROOT}/{kind}", {"items": []})
    for kind in ("statefulsets", "deployments"):
        server.on("GET", f"{APPS}/{kind}", {"items": []})
    server.on("GET", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", {"message": "no"}, status=403)
    event = {
        "involvedObject": {"kind": "Pod", "name": "demo-d1-0-0"},
        "reason": "Failed",
        "type": "Warning",
        "message": f"pull with Authorization: Bearer {PLANTED['jwt']} failed",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    other = {**event, "involvedObject": {"kind": "Pod", "name": "somebody-else"}}
    server.on("GET", f"{ROOT}/events", {"items": [event, other]})
    server.publish()
    server.on("GET", f"{ROOT}/pods/demo-d1-0-0:8080/proxy/metrics", PAGE.format(
        first=1, later=2, tokens=3, ttft=4, count=5
    ).encode())  # fmt: skip
    router = [
        json.dumps({"event": "request", "code": 200, "prompt": PLANTED["prompt"], "promptTokens": 12}),
        json.dumps({"event": "x", "deep": {"messages": [{"content": PLANTED["answer"]}]}, "x-weft-token": "abcdefgh1"}),
        f"connected with token {PLANTED['internal token']} to {PLANTED['jwt']}",
        f"key {PLANTED['api key']} and {PLANTED['plain secret value']}",
    ]
    engine_log = [
        f"INFO 01-01 00:00:00 [logger.py:42] Received request a-1: prompt: '{PLANTED['prompt']}",
        PLANTED["second line"],
        f"{PLANTED['third line']}', params: SamplingParams(n=1)",
        "(EngineCore pid=9) INFO 01-01 00:00:01 [core.py:1] KV cache usage: 12%",
        f"[2026-01-01 00:00:02] output: {PLANTED['answer']}",
        "Traceback (most recent call last):",
    ]
    server.on("GET", f"{ROOT}/pods/demo-d1-0-0/log", "\n".join([*router, *engine_log]).encode())


def opened(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive:
            raw = archive.extractfile(entry)
            assert raw is not None
            found[entry.name.partition("/")[2]] = raw.read().decode()
        return found


def test_no_planted_secret_prompt_or_token_leaves_the_cluster(server: Served, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    result = call(support_bundle, "demo", "--file", str(target), "--engine-logs", "-o", "json")
    assert result.return_value == 0
    files = opened(target)
    every = "\n".join([*files, *files.values(), result.output])
    for what, planted in PLANTED.items():
        assert planted not in every, what
        assert base64.b64encode(planted.encode()).decode() not in every, what
    assert "Secret" not in {yaml.safe_load(files[name])["kind"] for name in files if name.startswith("objects/")}
    assert not any(asked[1].partition("?")[0].endswith("/secrets") for asked in server.asked), "no list of Secrets"


def test_a_bundle_holds_what_helps(server: Served, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    result = call(support_bundle, "demo", "--file", str(target), "--tail", "9")
    files = opened(target)
    assert "wrote" in result.output
    assert {
        "README.txt", "summary.txt", "plans.json", "events.json", "faults.txt", "metrics/demo-d1-0-0-metrics.txt",
        "logs/demo-d1-0-0-router.log", "objects/disagginferenceservice-demo.yaml", "objects/pod-demo-d1-0-0.yaml",
        "objects/workergroup-demo-decode-1-abc.yaml", "objects/configmap-demo-plan.yaml",
    } <= set(files)  # fmt: skip
    assert not [name for name in files if "engine.log" in name], "engines' logs only where they are asked for"
    service = yaml.safe_load(files["objects/disagginferenceservice-demo.yaml"])
    assert service["spec"]["engine"]["args"] == ["--api-key", REDACTED, f"--hf-token={REDACTED}", "--max-num-seqs=64"]
    assert [item["name"] for item in service["spec"]["engine"]["env"]] == ["HF_TOKEN", "OMP_NUM_THREADS"]
    assert "managedFields" not in service["metadata"]
    assert "prometheus:9090" in files["summary.txt"]
    assert "P4x2 D8x1" in files["summary.txt"]
    pod = yaml.safe_load(files["objects/pod-demo-d1-0-0.yaml"])
    env = {item["name"]: item for item in pod["spec"]["containers"][0]["env"]}
    assert env["WEFT_ROLE"]["value"] == "decode"
    assert env["FROM"]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "all"}
    assert json.loads(yaml.safe_load(files["objects/configmap-demo-plan.yaml"])["data"]["router.json"])["tokens"] == 4
    events = json.loads(files["events.json"])
    assert [event["object"] for event in events] == ["Pod demo-d1-0-0"]
    assert 'weft_router_rounds_total{phase="first",class="default"} 1' in files["metrics/demo-d1-0-0-metrics.txt"]
    assert '"promptTokens": 12' in files["logs/demo-d1-0-0-router.log"]
    assert "PodDisruptionBudget: GET poddisruptionbudgets: 403" in files["faults.txt"]
    assert "log of demo-p1-0-0/router" in files["faults.txt"]
    assert [row["revision"] for row in json.loads(files["plans.json"])["revisions"]] == [1, 2]
    assert target.stat().st_mode & 0o077 == 0, "others may not read it"


def test_of_the_operators_words_only_those_about_the_service_are_in_it(server: Served, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    assert "operator" not in " ".join(opened_by(target)), "where there is none"
    said = [
        {"event": "plan_refused", "service": "default/demo", "reason": "OverBudget"},
        {"event": "plan_made", "service": "default/demo-2"},
        {"event": "plan_made", "service": "my-default/demo"},
        {"event": "leading", "lease": "weft-system/weft-operator"},
        {"event": "reconcile_failed", "service": "default/demo", "error": f"token={PLANTED['api key']}"},
    ]
    pod = {"metadata": {"name": "weft-operator-1", "namespace": "weft-system"}}
    server.on("GET", "/api/v1/pods", {"items": [pod]})
    server.on(
        "GET", "/api/v1/namespaces/weft-system/pods/weft-operator-1/log", "\n".join(map(json.dumps, said)).encode()
    )
    text = opened_by(target)["logs/operator-weft-operator-1.log"]
    assert [json.loads(line)["event"] for line in text.splitlines()] == ["plan_refused", "reconcile_failed"]
    assert PLANTED["api key"] not in text
    server.on("GET", "/api/v1/pods", {"message": "no"}, status=403)
    assert "logs of the operator: GET pods: 403" in opened_by(target)["faults.txt"]


def opened_by(target: Path) -> dict[str, str]:
    """Return the bundle that is written now."""
    assert call(support_bundle, "demo", "--file", str(target)).return_value == 0
    return opened(target)


def test_engines_logs_of_containers_before_are_there_and_keep_what_is_no_prompt(server: Served, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    call(support_bundle, "demo", "--file", str(target), "--engine-logs")
    files = opened(target)
    assert files["logs/demo-d1-0-0-engine-previous.log"] == files["logs/demo-d1-0-0-engine.log"]
    assert "KV cache usage: 12%" in files["logs/demo-d1-0-0-engine.log"]
    assert "Traceback" not in files["logs/demo-d1-0-0-engine.log"], "a line after a prompt may belong to it"


def test_a_file_that_cannot_be_written_is_named(server: Served, tmp_path: Path) -> None:
    assert "name another one with --file" in refusal(call(support_bundle, "demo", "--file", str(tmp_path / "no" / "b")))


@pytest.mark.parametrize(
    "text",
    [
        "promptTokens: 12", "tokens: 4", "kvTokens=9", "max_tokens: 256", "tokenSecretRef: keys",
        "automountServiceAccountToken: false", "the token is refused", "weft_router_decode_tokens_sum 3.0",
        "http://prometheus.monitoring:9090/api/v1", "weft.dev/token-hash", "key: all",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "password=S3cretS3cret", 'api_key: "S3cretS3cret"', "X-Weft-Token: S3cretS3cret",
        '{"authorization": "Bearer S3cretS3cret"}', "HF_TOKEN=S3cretS3cret", "postgres://me:S3cretS3cret@db/x",
        "--api-key=S3cretS3cret", "Authorization: Basic S3cretS3cret",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_goes(text: str) -> None:
    assert "S3cretS3cret" not in redact(text)
    assert REDACTED in redact(text)


def test_a_secret_is_never_shown() -> None:
    with pytest.raises(ValueError, match="Secrets are not shown"):
        redact_object({"kind": "Secret", "metadata": {"name": "a"}, "data": {}})


def test_numbers_of_structured_lines_stay() -> None:
    line = json.dumps({"event": "finished", "output": 12, "input": "words"})
    assert json.loads(next(redact_log([line]))) == {"event": "finished", "output": 12, "input": REDACTED}
