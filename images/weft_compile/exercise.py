"""What the compiled path is laid out for: conversations of a mixed kind with routers without sockets.

    python -m weft_compile.exercise

Sessions that a header names and sessions that are recognised by their messages, first and later rounds, answers whole
and streamed, short and long prompts, on prefill and decode workers that a policy chooses between. What is told about
the way of a request matters here, not how long it takes.
"""

import asyncio
import json
import secrets
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from weft_compile.in_memory import HANDLE, Alone, Sidecars, Wired, reply, request, settings, stream

MODEL = "exercise/model"
CLIENTS = 16
CONVERSATIONS = 40
"""Of each client."""
ROUNDS = 4
TURNS = 1_000
"""Turns of the loop in which all that was asked is answered."""
WORDS = ["one ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight "]
PROFILE = {
    "model": MODEL,
    "gpu": "none",
    "engine": "exercise",
    "kvBytesPerToken": 131_072,
    "degrees": [
        {
            "degree": 1,
            "weightBytesPerGpu": 1,
            "kvCapacityTokens": 400_000,
            "prefill": [{"alpha": 0.01, "perToken": 1e-5, "perPair": 1e-9, "perContextToken": 0.0}],
            "decode": [{"alpha": 0.01, "perSequence": 1e-4, "perContextToken": 1e-8}],
        }
    ],
    "transfers": [{"source": 1, "destination": 1, "link": "inter-node", "alpha": 0.005, "perToken": 1e-6}],
    "provenance": {},
}


@dataclass(slots=True)
class Conversation:
    """What one client says and hears."""

    number: int
    messages: list[dict[str, str]] = field(default_factory=list)

    @property
    def streamed(self) -> bool:
        return self.number % 3 == 1

    def next(self, key: str) -> bytes:
        """Return the next round's request."""
        # One prompt of forty is long.
        length = 6_000 if self.number % 40 == 7 and not self.messages else 30
        content = f"conversation {self.number}, message {len(self.messages)}: " + "weft and warp " * length
        self.messages.append({"role": "user", "content": content})
        body: dict[str, Any] = {"model": MODEL, "messages": self.messages, "max_tokens": len(WORDS)}
        if self.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return request(body, key=key, session="" if self.number % 4 == 2 else f"session-{self.number}")

    def heard(self, answer: bytes) -> None:
        """Take the whole answer.

        Raises:
            RuntimeError: it is none.
        """
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"conversation {self.number} was answered by {answer[:300]!r}")
        self.messages.append({"role": "assistant", "content": "".join(WORDS)})


class Service:
    """The files of a service, and its routers."""

    def __init__(self, folder: Path) -> None:
        config = {
            "service": "exercise",
            "namespace": "memory",
            "model": {"name": MODEL, "maxModelLen": 131_072},
            "engine": {"type": "vllm", "bidirectional": False},
            "slo": {"ttft": 5.0, "itl": 0.05},
            "routing": {"policy": "weft"},
            "profile": PROFILE,
            "planRevision": "exercise",
        }
        (folder / "router.json").write_text(json.dumps(config))
        workers = [
            {"name": f"{role}-{n}", "role": role, "url": f"http://127.0.0.1:{port + n}", "degree": 1}
            for role, port in (("prefill", 1), ("decode", 11))
            for n in range(4)
        ]
        (folder / "workers.json").write_text(json.dumps({"workers": workers}))
        self.key = secrets.token_hex(16)
        (folder / "api-keys").write_text(self.key)
        (folder / "token").write_text(secrets.token_hex(16))
        env = {
            "WEFT_API_KEYS_FILE": str(folder / "api-keys"),
            "WEFT_TOKEN_FILE": str(folder / "token"),
            "WEFT_REDIS_URL": "memory://",
            "POD_IP": "127.0.0.1",
        }
        self._settings = partial(settings, folder, env=env)

    def alone(self) -> Alone:
        """Return a standalone router."""
        return Alone(self._settings("standalone"), clients=CLIENTS)

    def sidecars(self) -> Sidecars:
        """Return a coordinator with a sidecar of each kind."""
        decode, prefill = self._settings("decode", port=8081, engine=11), self._settings("prefill", port=8082, engine=1)
        return Sidecars(self._settings("coordinator"), decode, prefill, clients=CLIENTS)


async def rounds(wired: Wired, talks: list[Conversation], key: str) -> None:
    """Have every client ask once, and the engines answer, until all have heard.

    Raises:
        RuntimeError: some hear nothing, or no answer.
    """
    loop = asyncio.get_running_loop()
    for (client, _), talk in zip(wired.clients, talks, strict=True):
        loop.call_soon(client.data_received, talk.next(key))
    heard = [b""] * len(talks)
    for _ in range(TURNS):
        await asyncio.sleep(0)
        for leg, transport in wired.legs:
            for piece in _answer(transport.taken()):
                loop.call_soon(leg.data_received, piece)
        for n, (_, transport) in enumerate(wired.clients):
            heard[n] += transport.taken()
        if all(map(_whole, heard)):
            break
    for talk, answer in zip(talks, heard, strict=True):
        talk.heard(answer)


def _answer(asked: bytes) -> list[bytes]:
    if not asked:
        return []
    if b'"do_remote_decode":true' in asked:
        return [reply(MODEL, "one", tokens=1, handle=HANDLE)]
    if b'"stream":true' in asked:
        return stream(MODEL, WORDS)
    return [reply(MODEL, "".join(WORDS), tokens=len(WORDS), handle=None)]


def _whole(answer: bytes) -> bool:
    return answer.endswith((b"0\r\n\r\n", b"}"))


async def talk(wired: Wired, key: str) -> None:
    """Hold all conversations with one router."""
    await wired.start()
    for n in range(CONVERSATIONS):
        talks = [Conversation(n * CLIENTS + i) for i in range(CLIENTS)]
        for _ in range(ROUNDS):
            await rounds(wired, talks, key)
    await wired.stop()


async def main() -> None:
    """Hold them with a standalone router, and with a coordinator and sidecars."""
    with tempfile.TemporaryDirectory(prefix="weft-exercise-") as folder:
        service = Service(Path(folder))
        await talk(service.alone(), service.key)
        await talk(service.sidecars(), service.key)


if __name__ == "__main__":
    asyncio.run(main())
