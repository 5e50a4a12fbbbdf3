"""A Prometheus that tells of any load one likes, as if it had been there for the whole window.

It answers the operator's own queries by the names of the figures in them; no router has to serve a thing.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from weft_operator.metrics.queries import FIGURE, Windows

Row = dict[str, object]
Pods = Callable[[str, str], Sequence[str]]
"""Return the names of the pods of a service, by its namespace and name."""

_ASKED = re.compile(rf'"{FIGURE}", "(\w+)", "", ""\)')
_ABOUT = re.compile(r'namespace="([^"]+)",service="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Sessions:
    """What every session is: rounds, tokens of its first prompt, of later ones and of answers, pauses in seconds."""

    rounds: int
    first_prompt: float
    increment: float
    decode: float
    gap_s: float


@dataclass(slots=True)
class SimulatedLoad:
    """What is told of each service: sessions a second, all served within the SLO."""

    sessions: Sessions
    windows: Windows
    pods: Pods
    rates: dict[str, float] = field(default_factory=dict)

    def rows(self, namespace: str, name: str, now: float) -> list[Row]:
        """Return every figure of a service."""
        whole, rate = self.windows.whole, self.rates.get(name, 0.0)
        first = rate * whole
        later, fast = first * (self.sessions.rounds - 1), rate * self.windows.fast * self.sessions.rounds
        every = first + later
        found = [row for pod in self.pods(namespace, name) for row in _seen(pod, now, whole)]
        found += [_row("rounds", first, phase="first"), _row("rounds", later, phase="later")]
        found += [_row("arrivals_fast", rate * self.windows.fast)]
        for index in range(1, self.sessions.rounds + 1):
            found.append(_row("index", first * index, le=f"{index}.0"))
        found += [_row("index", every, le="+Inf"), _row("index_sum", every * (self.sessions.rounds + 1) / 2)]
        for figure, mean, count in (
            ("first_prompt", self.sessions.first_prompt, first),
            ("increment", self.sessions.increment, later),
            ("decode", self.sessions.decode, every),
            ("gap", self.sessions.gap_s, later),
        ):
            found += [_row(figure, share * count, le=f"{mean * bound}") for bound, share in ((0.9, 0.0), (1.1, 1.0))]
            found += [_row(figure, count, le="+Inf"), _row(f"{figure}_sum", mean * count)]
        for objective in ("round", "ttft", "itl"):
            found.append(_row("slow", every, objective=objective, outcome="good", **{"class": "default"}))
        found.append(_row("fast", fast, outcome="good", **{"class": "default"}))
        return [*found, _row("queue", 0.0), _row("sessions_now", 1.0), _row("kv", 0.02, component="decode")]


@contextmanager
def telling(what: SimulatedLoad) -> Iterator[str]:
    """Serve it on loopback until the end of the block; yield its URL."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query).get("query", [""])[0]
            body = json.dumps({"status": "success", "data": _answer(what, query)}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, name="prometheus", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def _answer(what: SimulatedLoad, query: str) -> dict[str, object]:
    now = time.time()
    about = _ABOUT.search(query)
    if about is None:
        return {"resultType": "scalar", "result": [now, str(now)]}
    asked = set(_ASKED.findall(query))
    found = [row for row in what.rows(about[1], about[2], now) if _figure(row) in asked]
    return {"resultType": "vector", "result": found}


def _seen(pod: str, now: float, whole: int) -> list[Row]:
    """Return that a pod was scraped every second."""
    told = {"last": now - 0.5, "samples": whole, "steps": whole, "hole": 0.5, "before": now - whole, "copies": 1}
    return [_row(figure, value, pod=pod) for figure, value in told.items()]


def _row(figure: str, value: float, **labels: str) -> Row:
    return {"metric": {FIGURE: figure, **labels}, "value": [0, str(value)]}


def _figure(row: Row) -> str:
    metric = row["metric"]
    return str(metric[FIGURE]) if isinstance(metric, dict) else ""
