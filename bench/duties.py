"""Measure a whole round of the standalone router: ``python -m bench.duties [REQUESTS]``, all duties, no sockets.

64 clients at once, each request of two legs and of a session of its own; what clients and engines send is given to
the router's connections as bytes. Prints the interpreter, and the processor time of a request in its three parts: up
to the prefill call, from its answer to the decode call, and from that answer to the client's. It is the median over
rows of 64 requests, since a machine's neighbours spoil some.
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path

import orjson
import uvloop
from bench.router import weft
from bench.router.processes import HOST

from weft_compile.in_memory import HANDLE, Alone, reply, request
from weft_router.config import Flags, Settings, load

AT_ONCE = 64
CHARACTERS = 400
PORTS = (("prefill", range(1, 5), weft.PREFILL_DEGREE), ("decode", range(11, 15), weft.DECODE_DEGREE))
"""Nobody connects to them."""
PARTS = ("up to the prefill call", "to the decode call", "to the client's answer")


class Clients:
    """The clients and the engines of one router."""

    def __init__(self, settings: Settings, key: str) -> None:
        self._key = key
        self.wired = Alone(settings, clients=AT_ONCE)
        self._afterwards = self.wired.router.afterwards
        self._answers = (
            (b'"do_remote_decode":true', reply(weft.MODEL, "w", tokens=1, handle=HANDLE)),
            (b'"remote_engine_id":"engine-1"', reply(weft.MODEL, "w " * 16, tokens=16, handle=None)),
        )

    def row(self, number: int) -> tuple[float, ...]:
        """Serve a request of every client; return the microseconds that a request took, part by part.

        Raises:
            RuntimeError: one took another way than prefill, decode and a good answer.
        """
        requests = [self._request(number * AT_ONCE + i) for i in range(AT_ONCE)]
        began = time.process_time_ns()
        for (client, _), data in zip(self.wired.clients, requests, strict=True):
            client.data_received(data)
        self._afterwards.run()
        took = [time.process_time_ns() - began]
        for mark, answer in self._answers:
            asked = [(leg, transport) for leg, transport in self.wired.legs if transport.written]
            right = sum(mark in b"".join(transport.written) for _, transport in asked)
            if right != AT_ONCE:
                raise RuntimeError(f"{right} of {AT_ONCE} calls hold {mark.decode()}; {len(asked)} were sent")
            for _, transport in asked:
                transport.written.clear()
            began = time.process_time_ns()
            for leg, _ in asked:
                leg.data_received(answer)
            self._afterwards.run()
            took.append(time.process_time_ns() - began)
        for _, transport in self.wired.clients:
            if not transport.written or not transport.written[0].startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"a request was answered by {transport.written[:1]!r}")
            transport.written.clear()
        return tuple(part / AT_ONCE / 1e3 for part in took)

    def _request(self, n: int) -> bytes:
        message = {"role": "user", "content": f"{n:08d}" * (CHARACTERS // 8)}
        body = {"model": weft.MODEL, "messages": [message], "max_tokens": 16}
        return request(body, key=self._key, session=f"s-{n:016d}")


def _settings(folder: Path) -> tuple[Settings, str]:
    """Return the settings of the router that ``make bench-router`` measures, and an API key."""
    files = weft.written(folder)
    workers = folder / "workers.json"
    workers.write_bytes(orjson.dumps({"workers": [
        {"name": f"{role}-{port}", "role": role, "url": f"http://{HOST}:{port}", "degree": degree}
        for role, ports, degree in PORTS for port in ports
    ]}))  # fmt: skip
    flags = Flags(
        role="standalone", config=folder / "router.json", listen=f"{HOST}:8080", engine_url="", advertise=None,
        drain_seconds=1.0, workers=workers,
    )  # fmt: skip
    return load(flags, files.env), files.key


async def main(count: int) -> None:
    """Measure from the loop's own callbacks, where the router lives."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        clients = Clients(*_settings(Path(folder)))
        await clients.wired.start()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # as the router's processes do
        rows = [await _called(clients, number) for number in range(max(2, count // AT_ONCE))]
        await clients.wired.stop()
    parts = [statistics.median(part) for part in zip(*rows[1:], strict=True)]
    print(f"Python {sys.version.split()[0]} at {sys.base_prefix}")
    for name, part in zip(PARTS, parts, strict=True):
        print(f"{name}: {part:.1f} us")
    print(f"a request: {sum(parts):.1f} us")


async def _called(clients: Clients, number: int) -> tuple[float, ...]:
    """Run a row from a callback: a light task goes on in no other task."""
    done = asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            done.set_result(clients.row(number))
        except RuntimeError as error:
            done.set_exception(error)

    asyncio.get_running_loop().call_soon(call)
    found: tuple[float, ...] = await done
    return found


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
