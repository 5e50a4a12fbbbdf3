"""Measure a whole round of the router, all duties, no sockets: ``python -m bench.duties [--sidecars] [REQUESTS]``.

64 clients at once, each request of two legs and of a session of its own; what clients and engines send is given to
the routers' connections as bytes. Prints the interpreter, and the processor time of a request: of the standalone router
in its three parts (up to the prefill call, from its answer to the decode call, from that answer to the client's), of a
coordinator with a decode and a prefill sidecar in one sum. It is the median over rows of 64 requests, since a machine's
neighbours spoil some.
"""

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import orjson
import uvloop
from bench.in_memory import HANDLE, Alone, Sidecars, Transport, reply, request, settings
from bench.router import weft
from bench.router.processes import HOST

from weft_router.http.upstream_connection import UpstreamConnection

AT_ONCE = 64
CHARACTERS = 400
PORTS = (("prefill", range(1, 5), weft.PREFILL_DEGREE), ("decode", range(11, 15), weft.DECODE_DEGREE))
"""Nobody connects to them."""
PARTS = ("up to the prefill call", "to the decode call", "to the client's answer")


TURNS = 100
"""Turns of the loop in which a request gets from its client to an engine."""
ANSWERS = (
    (b'"do_remote_decode":true', reply(weft.MODEL, "w", tokens=1, handle=HANDLE)),
    (b'"remote_engine_id":"engine-1"', reply(weft.MODEL, "w " * 16, tokens=16, handle=None)),
)
"""What engines answer, by what they were asked."""


def wired(folder: Path, *, sidecars: bool) -> tuple[Alone | Sidecars, str]:
    """Return the routers that ``make bench-router`` measures, and an API key."""
    files = weft.written(folder)
    workers = folder / "workers.json"
    workers.write_bytes(orjson.dumps({"workers": [
        {"name": f"{role}-{port}", "role": role, "url": f"http://{HOST}:{port}", "degree": degree}
        for role, ports, degree in PORTS for port in ports
    ]}))  # fmt: skip
    of = partial(settings, folder, env=files.env)
    if not sidecars:
        return Alone(of("standalone"), clients=AT_ONCE), files.key
    decode = of("decode", port=8081, engine=11, degree=weft.DECODE_DEGREE)
    prefill = of("prefill", port=8082, engine=1, degree=weft.PREFILL_DEGREE)
    return Sidecars(of("coordinator"), decode, prefill, clients=AT_ONCE), files.key


def request_of(number: int, *, key: str) -> bytes:
    """Return a request of a session of its own."""
    message = {"role": "user", "content": f"{number:08d}" * (CHARACTERS // 8)}
    body = {"model": weft.MODEL, "messages": [message], "max_tokens": 16}
    return request(body, key=key, session=f"s-{number:016d}")


def asked_of(legs: list[tuple[UpstreamConnection, Transport]], mark: bytes) -> list[UpstreamConnection]:
    """Return the connections over which engines were asked for this; what else they were asked stays unanswered.

    Raises:
        RuntimeError: there are not as many as clients.
    """
    asked = [leg for leg, transport in legs if mark in transport.taken()]
    if len(asked) != AT_ONCE:
        raise RuntimeError(f"{len(asked)} of {AT_ONCE} calls hold {mark.decode()}")
    return asked


def answered(clients: list[tuple[object, Transport]]) -> None:
    """Take the clients' answers.

    Raises:
        RuntimeError: one is no good answer.
    """
    for _, transport in clients:
        answer = transport.taken()
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"a request was answered by {answer[:200]!r}")


def row(routers: Alone, number: int, key: str) -> tuple[float, ...]:
    """Serve a request of every client; return the microseconds that a request took, part by part.

    Raises:
        RuntimeError: one took another way than prefill, decode and a good answer.
    """
    requests = [request_of(number * AT_ONCE + i, key=key) for i in range(AT_ONCE)]
    began = time.process_time_ns()
    for (client, _), data in zip(routers.clients, requests, strict=True):
        client.data_received(data)
    took = [time.process_time_ns() - began]
    for mark, answer in ANSWERS:
        asked = asked_of(routers.legs, mark)
        began = time.process_time_ns()
        for leg in asked:
            leg.data_received(answer)
        took.append(time.process_time_ns() - began)
    answered([*routers.clients])
    return tuple(part / AT_ONCE / 1e3 for part in took)


async def row_across(routers: Sidecars, number: int, key: str) -> tuple[float, ...]:
    """Serve a request of every client by all three processes; return the microseconds that a request took.

    Raises:
        RuntimeError: one took another way than prefill, decode and a good answer.
    """
    loop = asyncio.get_running_loop()
    requests = [request_of(number * AT_ONCE + i, key=key) for i in range(AT_ONCE)]
    began = time.process_time_ns()
    for (client, _), data in zip(routers.clients, requests, strict=True):
        loop.call_soon(client.data_received, data)
    for mark, answer in ANSWERS:
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if sum(bool(transport.written) for _, transport in routers.legs) >= AT_ONCE:
                break
        for leg in asked_of(routers.legs, mark):
            loop.call_soon(leg.data_received, answer)
    for _ in range(TURNS):
        await asyncio.sleep(0)
        if all(transport.written for _, transport in routers.clients):
            break
    took = time.process_time_ns() - began
    answered([*routers.clients])
    return (took / AT_ONCE / 1e3,)


async def main(count: int, *, sidecars: bool) -> None:
    """Measure from the loop's own callbacks, where routers live."""
    rows, numbers = [], range(max(2, count // AT_ONCE))
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        routers, key = wired(Path(folder), sidecars=sidecars)
        await routers.start()
        gc.freeze()
        gc.set_threshold(5_000, 20, 20)  # as the router's processes do
        for number in numbers:
            if isinstance(routers, Alone):
                rows.append(await _called(routers, number, key))
            else:
                rows.append(await row_across(routers, number, key))
        await routers.stop()
    parts = [statistics.median(part) for part in zip(*rows[1:], strict=True)]
    print(f"Python {sys.version.split()[0]} at {sys.base_prefix}")
    if not sidecars:
        for name, part in zip(PARTS, parts, strict=True):
            print(f"{name}: {part:.1f} us")
    print(f"a request: {sum(parts):.1f} us")


async def _called(routers: Alone, number: int, key: str) -> tuple[float, ...]:
    """Run a row from a callback: a light task goes on in no other task."""
    done = asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            done.set_result(row(routers, number, key))
        except RuntimeError as error:
            done.set_exception(error)

    asyncio.get_running_loop().call_soon(call)
    found: tuple[float, ...] = await done
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.duties", description="Measure a round without sockets.")
    parser.add_argument("requests", nargs="?", type=int, default=20_000)
    parser.add_argument("--sidecars", action="store_true", help="a coordinator and sidecars, not the standalone router")
    given = parser.parse_args()
    uvloop.run(main(given.requests, sidecars=given.sidecars))
