"""Heartbeats as they are stored, and who may go first by them."""

import json
from dataclasses import fields

from weft_core.heartbeat import QueueEntry, WorkerRecord, read_fields, scale_down_order, worker_key, workers_key
from weft_core.prefix_sketch import link_digest, sketch_of

FULL = WorkerRecord(
    "d0", "decode", "http://x", 2, 1000, pool="p", revision="r", node="n", instance_id="i", seq=3, ready=True,
    draining=True, queue=(QueueEntry(5, 6, "q"),), windowed_ttft=0.2, windowed_itl=0.1, slowdown=1.5, kv_used=7,
    kv_intake=6, batch=8, sessions=9, live_rounds=4, kv_tokens=5000, idle_seconds=1.5, chars_per_token=3.5,
    engine_port=8000, engine_plugin="off", engine_version="1", kv_open=2, kv_proven=1, kv_faults=(("p0", "transfer"),),
    kv_transports=("tcp",), kv_bytes_per_s=2e8, kv_latency=0.007, quarantined=("a:b:c",),
    adapters=("sql@01234567",), adapter_faults=(("law@89abcdef", "No adapter found"),),
    kv_tier_faults=(("disk-full", ""),),
    kv_prefixes=sketch_of([link_digest("", "a")]),
    kv_tier_prefixes=(("cpu", sketch_of([link_digest("", "a")])), ("disk", "")),
)  # fmt: skip


def test_a_record_survives_the_store() -> None:
    plain = WorkerRecord("d0", "decode", "http://x", 2, 1000)
    left_out = [f.name for f in fields(FULL) if getattr(FULL, f.name) == getattr(plain, f.name) and f.name != "worker"]
    assert left_out == ["role", "url", "degree", "capacity"], "every optional field has a value of its own here"
    assert read_fields(json.loads(json.dumps(FULL.fields()))) == FULL


def test_what_another_version_wrote_is_read_as_far_as_possible_or_skipped() -> None:
    stored = FULL.fields()
    old = {key: value for key, value in stored.items() if key not in ("liveRounds", "kvTokens", "idleSeconds")}
    assert read_fields(old) is not None
    others: list[object] = [[], {}, "x", None, {"worker": 1}, {**stored, "role": "else"}, {**stored, "seq": "x"}]
    others += [{**stored, "kvPrefixes": sketch} for sketch in (5, "not base64", "A" * 100_000)]
    others += [
        {**stored, "kvTierPrefixes": given}
        for given in (5, [["gpu", ""]], [["cpu"]], [["cpu", "?"]], [["cpu", ""]] * 4)
    ]
    for strange in others:
        assert read_fields(strange) is None


def test_keys_of_one_service_stay_together() -> None:
    assert workers_key("ns", "svc") == "weft:{ns/svc}:workers"
    assert worker_key("ns", "svc", "d-0") == "weft:{ns/svc}:worker:d-0"


def test_whoever_loses_least_goes_first() -> None:
    def worker(name: str, **said: object) -> WorkerRecord:
        return WorkerRecord(name, "decode", "http://x", 1, 1000, **said)  # type: ignore[arg-type]

    goes = [
        worker("leaving", live_rounds=9, kv_tokens=5000, draining=True),
        worker("brief", live_rounds=9, kv_tokens=10),
        worker("idle-long", kv_tokens=100, idle_seconds=50.0),
        worker("idle", kv_tokens=100, idle_seconds=5.0),
        worker("namesake", kv_tokens=100, idle_seconds=5.0),
        worker("live", live_rounds=1, kv_tokens=100),
        worker("much", kv_tokens=900),
        worker("first-rounds", live_rounds=2, kv_used=1500),
    ]
    assert scale_down_order(reversed(goes)) == goes
