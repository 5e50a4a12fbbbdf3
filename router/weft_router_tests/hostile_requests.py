"""Requests that mean harm, as bytes for a connection: good ones with changes, and some that no change leads to."""

import json
import random
from typing import Any

from weft_router_tests.stack import MODEL

PATHS = (
    *("/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"),
    *("/v1/models", "/v1/sessions/x", "/metrics", "/healthz", "/drain", "/internal/prefill", "/v1/chat/completions/.."),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 2**31, 2**63, 10**400, 0.5, 1e308, -1e308, "", "x", "\x00", "\ud800", "x" * 20_000),
    *(
        [],
        {},
        [None],
        [[]],
        [[[[[]]]]],
        {"a": {"b": {"c": []}}},
        [{}] * 2000,
        [1] * 5000,
        {f"{n}": n for n in range(500)},
    ),
    *("http://169.254.169.254/", "data:text/plain,x", "user", "system", "assistant", "tool", "auto", "json_object"),
)
FIELDS = (
    *("model", "messages", "stream", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "logprobs"),
    *("top_logprobs", "stop", "seed", "logit_bias", "tools", "tool_choice", "response_format", "stream_options"),
    *("user", "prompt", "input", "echo", "best_of", "suffix", "service_tier", "documents", "kv_transfer_params"),
    *("prompt_token_ids", "cache_salt", "priority", "chat_template", "metadata", "min_tokens", "x_weft_resume", ""),
)
BODIES = (
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b"{" + b'"a":1,' * 50_000 + b'"b":1}',
    b"[" + b"{}," * 90_000 + b"{}]",
    b'{"messages":[' + b"{}," * 90_000 + b"{}]}",
    b'{"model":"' + b"\\u0041" * 50_000 + b'"}',
)
HEADERS = (
    *("X-Session-Id", "X-Weft-Class", "Content-Encoding", "Transfer-Encoding", "Content-Length", "Expect", "Upgrade"),
    *("Connection", "Accept", "traceparent", "X-Weft-Hop", "X-Request-Id", "Host", "Cookie", "Authorization", "Range"),
)
HEADER_VALUES = (
    *("", "x", "x" * 8000, "gzip", "chunked", "chunked, chunked", "0", "-1", "9" * 30, "100-continue", "h2c", "close"),
    *("\x7f", "é", "a\tb", "interactive", "batch", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "../../x", "*"),
)


def hostile_request(rng: random.Random, key: str) -> tuple[bytes, bool]:
    """Return bytes to send, and whether they are a whole request that must be answered."""
    path = rng.choice(PATHS)
    body = json.dumps(_body(rng, path)).encode()
    if rng.random() < 0.2:
        body = _bytes(rng, body)
    if rng.random() < 0.05:
        body = rng.choice(BODIES)
    method = rng.choice(["POST", "POST", "POST", "POST", "GET", "DELETE", "PUT", "OPTIONS", "X" * 30])
    headers = [("Host", "x"), ("Content-Type", "application/json"), ("Connection", "close")]
    if rng.random() < 0.8:
        headers.append(("Authorization", f"Bearer {key}"))
    if rng.random() < 0.5:
        headers.append(("X-Session-Id", f"s{rng.randrange(50)}"))
    whole = True
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        name = rng.choice(HEADERS)
        headers.append((name, rng.choice(HEADER_VALUES)))
        whole = whole and name not in ("Transfer-Encoding", "Content-Length", "Expect", "Upgrade")
    if rng.random() < 0.2:
        headers.append(("Transfer-Encoding", "chunked"))
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in _parts(rng, body)) + b"0\r\n\r\n"
    else:
        headers.append(("Content-Length", str(len(body))))
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
    raw = head.encode("utf-8", "replace") + body
    trick = rng.random()
    if trick < 0.1:
        return _bytes(rng, raw), False
    if trick < 0.2:
        return raw[: rng.randrange(len(raw))], False
    if trick < 0.3:
        return raw * rng.randrange(2, 5), False  # pipelined
    return raw, whole


def _body(rng: random.Random, path: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": MODEL, "stream": rng.random() < 0.5}
    if path.startswith("/v1/completions"):
        body["prompt"] = f"question {rng.random()}"
    elif path.startswith("/v1/responses"):
        body["input"] = f"question {rng.random()}"
    else:
        body["messages"] = [{"role": "user", "content": f"question {rng.random()}"}]
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        at: Any = body
        if rng.random() < 0.3 and isinstance(body.get("messages"), list) and body["messages"]:
            at = body["messages"][0]
        if isinstance(at, dict):
            name = rng.choice([*at, *FIELDS, "role", "content", "name", "tool_calls"])
            if rng.random() < 0.15:
                at.pop(name, None)
            else:
                at[name] = rng.choice(VALUES)
    return body


def _parts(rng: random.Random, body: bytes) -> list[bytes]:
    size = rng.choice([1, 7, 1000, 65536]) if len(body) < 5000 else 65536
    return [body[at : at + size] for at in range(0, len(body), size)]


def _bytes(rng: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                changed[at:at] = rng.randbytes(rng.randrange(8))
            case 2:
                del changed[at : at + rng.randrange(1, 20)]
            case _:
                changed[at:at] = changed[at : at + rng.randrange(50)]
    return bytes(changed)
