"""A router of its own in front of real engines that run already: other roles, other routing, another cost profile."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from weft_core.parallelism import Degree, degree_to_json
from weft_e2e.engines.command import HOST
from weft_e2e.local.ports import free_ports
from weft_e2e.waiting import until
from weft_e2e_tests.engine_stack import ROUND_S, EngineStack, wanted

NOTHING: Mapping[str, Any] = MappingProxyType({})
CPU_PROFILE: dict[str, Any] = {
    "degree": 1,
    "kvCapacityTokens": 20480,
    "weightBytesPerGpu": 9646080,
    "prefill": [{"alpha": 0.02, "perContextToken": 0.0, "perPair": 0.0, "perToken": 3e-4}],
    "decode": [
        {
            "alpha": 0.006,
            "perSequence": 0.001,
            "perContextToken": 0.0,
            "perChunkToken": 3e-4,
            "perChunkContext": 0.0,
            "perChunkPair": 0.0,
        }
    ],
}
"""Roughly what the tiny model costs on a core: 128 prompt tokens beside some streams take 50 ms."""


@contextmanager
def other_router(
    stack: EngineStack, folder: Path, roles: Mapping[str, str], *, routing: Mapping[str, Any], slo: Mapping[str, float],
    degree: Degree = 1, model: Mapping[str, Any] = NOTHING, sections: Mapping[str, Any] = NOTHING,
) -> Iterator[str]:  # fmt: skip
    """Run it in front of engines of a degree, by name of the stack to role, and return its address.

    ``sections`` replace whole sections of its router.json.
    """
    folder.mkdir()
    config = json.loads((stack.folder / "router.json").read_text()) | dict(sections)
    config["routing"] |= routing
    config["model"] |= model
    config["slo"] = dict(slo)
    text = degree_to_json(degree)
    config["profile"]["degrees"] = [CPU_PROFILE | {"degree": text}]
    urls = {"prefill": stack.prefill.url, "decode": stack.decode.url}
    workers = [{"name": name, "role": role, "url": urls[name], "degree": text} for name, role in roles.items()]
    files = {"router.json": config, "workers.json": {"workers": workers}}
    for name, body in files.items():
        (folder / name).write_text(json.dumps(body))
    (folder / "proof").write_text(stack.proof)
    port = free_ports(1)[0]
    argv = [sys.executable, "-m", "weft_router", "--role=standalone", f"--config={folder / 'router.json'}"]
    argv += [f"--workers={folder / 'workers.json'}", f"--listen={HOST}:{port}", "--drain-seconds=0.5"]
    with (folder / "router.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *argv],
            env={"PATH": "/usr/bin:/bin", "WEFT_ENGINE_PROOF_FILE": str(folder / "proof")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    url = f"http://{HOST}:{port}"

    def ready() -> bool:
        assert process.poll() is None, (folder / "router.log").read_text()[-2000:]
        try:
            page = httpx.get(f"{url}/metrics", timeout=5.0).text
        except httpx.TransportError:
            return False
        known = page.count("\n") and f'weft_router_engine_plugins{{state="active"}} {len(roles)}' in page
        return bool(known) and httpx.get(f"{url}/readyz", timeout=5.0).status_code == 200

    try:
        until(ready, what="a router that knows its engines", timeout_s=60, every_s=0.2)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@dataclass(slots=True)
class Stream:
    """One long answer that is read as it comes, in a thread; ``at`` is when each of its tokens came."""

    url: str
    text: str
    tokens: int
    at: list[float] = field(default_factory=list)
    thread: threading.Thread = field(init=False)
    stop: bool = False

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        body = {**wanted([{"role": "user", "content": self.text}], self.tokens), "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=ROUND_S) as reply:
            for part in reply.iter_bytes():
                if b'"content"' in part:
                    self.at.append(time.monotonic())
                if self.stop:
                    return

    def end(self) -> None:
        """Leave it, and wait for its thread."""
        self.stop = True
        self.thread.join(ROUND_S)


def largest_gap(streams: list[Stream], begun: float, ended: float) -> float:
    """Return the longest time in seconds that any of them waited for a token, of gaps that end within the span."""
    gaps = (
        later - at
        for stream in streams
        for at, later in zip(stream.at, stream.at[1:], strict=False)
        if begun < later and at < ended
    )
    return max(gaps, default=0.0)
