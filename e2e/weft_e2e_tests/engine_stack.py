"""A prefill and a decode engine of stock vLLM, a plain one to compare with, and ``weft local`` in front of the two."""

import itertools
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import orjson

from weft_core.parallelism import Degree, parallelism_of
from weft_core.plan import Role
from weft_e2e.engines.command import HOST, TINY, command, tiny_service
from weft_e2e.engines.counters import reads
from weft_e2e.engines.environment import environment
from weft_e2e.engines.file_tier import with_files
from weft_e2e.engines.process import EngineProcess, running
from weft_e2e.local.ports import free_ports
from weft_e2e.metrics import Growth, growth
from weft_e2e.waiting import until
from weft_e2e_tests.local_runs import LocalRun, local_run
from weft_operator.api.service import DisaggInferenceService

MODEL = "weft/tiny"
TOKENS = 24
LONG = 160
"""An answer of more tokens than the engines' blocks of 128 leaves KV that only its decode engine has."""
ROUND_S = 120.0
"""For one round on a machine that does other things too; the first hand-over between two engines takes seconds."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
_names = itertools.count()


class ToldError(Exception):
    """Report what a client was told instead of an answer: the error's code, and all that came."""

    def __init__(self, code: str, raw: bytes) -> None:
        super().__init__(f"{code}: {raw[-500:]!r}")
        self.code = code


@dataclass(slots=True)
class Chat:
    """A client's conversation through the router; every answer becomes part of its history, as text."""

    url: str
    stream: bool
    tokens: int = TOKENS
    session: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    route: str = ""
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = self.session or f"engine-{next(_names)}"

    def ask(self, text: str, *, timeout: float = ROUND_S, **fields: Any) -> str:
        """Ask and return the answer; ``route`` and ``events`` tell how it came.

        Raises:
            ToldError: an error came instead, or in the stream.
        """
        self.messages.append({"role": "user", "content": text})
        body = {**wanted(self.messages, self.tokens), "stream": self.stream, **fields}
        headers = {"X-Session-Id": self.session}
        with httpx.stream(
            "POST", f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=timeout
        ) as got:
            raw = got.read()
            if got.status_code != 200:
                raise ToldError(str(orjson.loads(raw)["error"].get("code") or got.status_code), raw)
            self.route = got.headers["x-weft-route"]
        self.events = [event for event in raw.decode().split("\n\n") if event] if self.stream else []
        broken = [event for event in self.events if event.startswith('data: {"error"')]
        if broken:
            raise ToldError(str(orjson.loads(broken[0][6:])["error"].get("code")), raw)
        answer = streamed(raw) if self.stream else str(orjson.loads(raw)["choices"][0]["message"]["content"])
        self.messages.append({"role": "assistant", "content": answer})
        return answer


def wanted(messages: list[dict[str, str]], tokens: int = TOKENS) -> dict[str, Any]:
    """Return the greedy request that every engine gets."""
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0}


def streamed(raw: bytes) -> str:
    """Return the text of a stream of chat events."""
    events = [part[6:] for part in raw.split(b"\n\n") if part.startswith(b"data: {")]
    chunks = [orjson.loads(event) for event in events]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@dataclass(slots=True)
class EngineStack:
    """What runs, and what was counted when it began."""

    prefill: EngineProcess
    decode: EngineProcess
    plain: EngineProcess
    run: LocalRun
    folder: Path
    proof: str
    """The word by which the two engines behind the router know it."""

    @property
    def url(self) -> str:
        """Return the router's address."""
        return self.run.url

    def chat(self, *, stream: bool, tokens: int = TOKENS) -> Chat:
        """Begin a conversation with answers of so many tokens."""
        return Chat(self.url, stream, tokens)

    def expected(self, messages: list[dict[str, str]], tokens: int = TOKENS) -> str:
        """Return what the plain engine answers to a conversation."""
        reply = httpx.post(f"{self.plain.url}/v1/chat/completions", json=wanted(messages, tokens), timeout=ROUND_S)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["message"]["content"])

    def pages(self) -> dict[str, str]:
        """Return the counters of both engines and of the router."""
        router = httpx.get(f"{self.url}/metrics", timeout=20.0).raise_for_status().text
        return {"prefill": self.prefill.counters(), "decode": self.decode.counters(), "router": router}

    def grown(self, before: dict[str, str]) -> Growth:
        """Return what was counted since."""
        return growth(before, self.pages())

    def transfers(self, before: dict[str, str]) -> dict[str, float]:
        """Return how often each engine read KV from the other one since, by its own counters."""
        found = reads(self.grown(before))
        return {name: found.get(name, 0.0) for name in ("prefill", "decode")}

    def until_moved(self, before: dict[str, str], *, prefill: int, decode: int) -> None:
        """Wait until each engine has counted so many reads since: they count with their next step."""
        wanted = {"prefill": prefill, "decode": decode}
        until(
            lambda: self.transfers(before) == wanted,
            what=f"reads {wanted}",
            timeout_s=60,
            last=lambda: str(self.transfers(before)),
        )

    def until_counted(self, before: dict[str, str], name: str, count: float, **labels: str) -> None:
        """Wait until the router has counted so much since."""
        until(
            lambda: self.grown(before).total(name, **labels) == count,
            what=f"{name} of {count:g}",
            timeout_s=60,
            last=lambda: str(self.grown(before).total(name, **labels)),
        )

    def use_policy(self, name: str) -> None:
        """Let the running router route by another policy."""
        live = self.folder / "live.json"
        body = json.loads(live.read_text())
        if body["routing"]["policy"] == name:
            return
        body["routing"]["policy"] = name
        begun = time.monotonic()
        live.write_text(json.dumps(body))
        until(  # its age is counted from when the file was written
            lambda: self._configuration_age() < time.monotonic() - begun + 0.1,
            what=f"policy {name}",
            timeout_s=120,
            every_s=0.2,
            last=lambda: f"configuration of {self._configuration_age():.1f} s; {self.run.said[-500:]}",
        )

    def _configuration_age(self) -> float:
        page = growth({}, {"router": httpx.get(f"{self.url}/metrics", timeout=20.0).text})
        return page.total("weft_router_configuration_age_seconds")

    def whole(self) -> None:
        """Start what a test before has killed and not started again, and wait until the router uses all of it."""
        engines = (self.prefill, self.decode, self.plain)
        for engine in engines:
            if not engine.alive:
                engine.start_again()
        for engine in engines:
            engine.wait()
        until(
            lambda: self._known() == {"plug-ins": 2.0, "prefill": 1.0, "decode": 1.0},
            what="a router that uses both engines",
            timeout_s=60,
            last=lambda: str(self._known()),
        )

    def _known(self) -> dict[str, float]:
        """Return how many engines' plug-ins the router knows, and how many ready workers of each role."""
        page = growth({}, {"router": httpx.get(f"{self.url}/metrics", timeout=20.0).text})
        ready = {role: page.total("weft_router_workers", role=role, state="ready") for role in ("prefill", "decode")}
        return {"plug-ins": page.total("weft_router_engine_plugins", state="active"), **ready}

    def until_idle(self) -> None:
        """Wait until neither engine keeps KV for anybody: what is pinned for readers has a time to live."""
        until(
            lambda: self.prefill.kv_usage() == self.decode.kv_usage() == 0.0,
            what="engines without pinned KV",
            timeout_s=300,
            every_s=1.0,
            last=lambda: f"prefill {self.prefill.kv_usage():.4f}, decode {self.decode.kv_usage():.4f}",
        )


@contextmanager
def plain_engine(
    folder: Path, *, args: Sequence[str] = (), env: Mapping[str, str] = NO_VARIABLES
) -> Iterator[EngineProcess]:
    """Start an engine without disaggregation; its user waits for it, and starts it again where another one ended it.

    ``args`` and the variables ``env`` are given to it beside those of the tiny service.
    """
    (port,) = free_ports(1)
    engine = _engine(folder, "plain", port, 0, core=1, paired=False, args=args, variables=env)
    try:
        yield engine
    finally:
        engine.end()


def _engine(
    folder: Path, name: str, port: int, side_port: int, *, core: int, paired: bool = True, args: Sequence[str] = (),
    degree: Degree = 1, variables: Mapping[str, str] = NO_VARIABLES, file_tier: bool = False,
) -> EngineProcess:  # fmt: skip
    env = environment()
    assert env.there, "run `make engine-env`"
    service = tiny_service()
    service["spec"]["engine"]["args"] += args
    spec = DisaggInferenceService.model_validate(service).spec
    home = folder / name
    home.mkdir()
    role: Role = "prefill" if name == "prefill" else "decode"
    found = command(spec, env, role, port=port, side_port=side_port, core=core, home=home, paired=paired, degree=degree)
    if file_tier:
        found = with_files(found, home / "kv")
    found.env.update(variables)
    if paired:
        found.env["WEFT_ENGINE_PROOF_FILE"] = str(folder / "proof")
    return EngineProcess(name, f"http://{HOST}:{port}", found, folder / f"{name}.log")


@contextmanager
def engine_stack(
    folder: Path, plain: EngineProcess | None = None, *, args: Sequence[str] = (), degree: Degree = 1,
    env: Mapping[str, str] = NO_VARIABLES, file_tier: bool = False,
) -> Iterator[EngineStack]:  # fmt: skip
    """Run all of it, beside a plain engine that runs already or one of its own; ``args`` and ``env`` are its engines'.

    ``degree`` is that of the prefill and of the decode engine; the router in front of the two knows nothing of it.
    With a ``file_tier`` each of the two writes KV to files of its own, too.
    """
    if plain is None:
        with (
            plain_engine(folder, args=args, env=env) as own,
            engine_stack(folder, own, args=args, degree=degree, env=env, file_tier=file_tier) as stack,
        ):
            yield stack
        return
    ports, side_ports = free_ports(2), free_ports(2, width=parallelism_of(degree).dp)
    proof = folder / "proof"
    proof.write_text(secrets.token_urlsafe(24))
    known = {"WEFT_ENGINE_PROOF_FILE": str(proof)}
    prefill, decode = (
        _engine(
            folder, name, ports[core], side_ports[core], core=core, args=args, degree=degree, variables=env,
            file_tier=file_tier,
        )
        for core, name in enumerate(("prefill", "decode"))
    )  # fmt: skip
    engines = prefill, decode
    with running(*engines):
        if not plain.alive:
            plain.start_again()
        plain.wait()
        given = [f"--engine={engines[0].name}={engines[0].url}", f"--engine={engines[1].name}={engines[1].url}"]
        logs = folder / "router"
        with local_run(logs, "--port", str(free_ports(1)[0]), *given, file=TINY, env=known) as run:
            run.wait_for("Ctrl-C ends it.")
            stack = EngineStack(*engines, plain, run, logs, proof.read_text())
            stack.whole()
            yield stack
