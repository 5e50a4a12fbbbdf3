"""A service that has no workers while nobody asks anything, and single requests with all that came back."""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from weft_e2e.kube import Object
from weft_e2e.replay.client import Target
from weft_e2e.scenarios.manifests import small_service

AFTER_S = 60.0
"""The shortest time without a request that a service may ask for."""
HOLD_S = 30.0
"""Longer than a mock worker takes to start on a busy machine, and short enough to be waited for."""


def resting_service() -> Object:
    """Return a small service that goes to zero."""
    manifest = small_service("rest")
    manifest["spec"]["planning"] |= {
        "objective": "cost",
        "interval": "1s",
        "prometheus": {"window": "20s", "staleAfter": "10s"},
        "scaleToZero": {"after": f"{AFTER_S:.0f}s", "hold": f"{HOLD_S:.0f}s", "maxHeld": 8},
    }
    return manifest


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request; ``seconds`` from sending it to the end of the answer."""

    status: int
    retry_after_s: float | None
    text: str
    """The answer's words, or the message of the error."""
    seconds: float
    fallback: str = ""
    """The service that answered in place of the one that was asked."""


def ask(target: Target, words: str, *, tokens: int = 8, timeout_s: float = HOLD_S + 60) -> Reply:
    """Send one request and wait for its whole answer, of so many tokens."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{target.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    begun = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 - loopback
            text = json.loads(reply.read())["choices"][0]["message"]["content"]
            seconds = time.monotonic() - begun
            return Reply(reply.status, None, text, seconds, reply.headers.get("X-Weft-Fallback", ""))
    except urllib.error.HTTPError as error:
        said = error.headers.get("Retry-After")
        message = json.loads(error.read())["error"]["message"]
        return Reply(error.code, None if said is None else float(said), message, time.monotonic() - begun)


def models(target: Target) -> list[str]:
    """Return the models that are listed."""
    with urllib.request.urlopen(f"{target.url}/v1/models", timeout=10) as reply:  # noqa: S310 - loopback
        return [item["id"] for item in json.loads(reply.read())["data"]]
