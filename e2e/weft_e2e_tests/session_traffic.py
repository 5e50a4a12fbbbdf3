"""Sessions that take turns, for an engine whose cache is too small for all of them; a character is a token."""

import random
from collections import Counter
from dataclasses import dataclass, field

import httpx

OPEN = 10
"""Sessions that are open at a time."""
MESSAGES = 10
SYSTEM = (500, 900, 1400, 2100)
"""Tokens of the system prompts that they share."""
ANSWER = 12
LONGEST = 3300
"""Tokens after which a session ends: the model has 4,096."""
CHANGED = 0.1
"""Share of later rounds whose client has changed an earlier message."""
LETTERS = "abcdefghijklmnopqrstuvwxyz ,.ABC"


@dataclass(slots=True)
class SessionTraffic:
    """Clients of a service, one request at a time."""

    http: httpx.Client
    model: str
    rng: random.Random
    reported: dict[str, int] = field(default_factory=dict)
    """Cached tokens of each request, by its id, as the engine reports them to the client."""
    kinds: Counter[str] = field(default_factory=Counter)
    _sessions: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    _systems: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._systems = [self._text(tokens) for tokens in SYSTEM]

    def send(self, requests: int) -> None:
        """Send requests of new sessions, and of others that have waited for some."""
        for _ in range(requests):
            name = self._next()
            messages = self._sessions[name]
            messages.append({"role": "user", "content": self._text(self.rng.randrange(40, 300))})
            messages.append({"role": "assistant", "content": self._ask(name, messages)})
            if len(messages) > MESSAGES or sum(len(one["content"]) for one in messages) > LONGEST:
                del self._sessions[name]

    def _next(self) -> str:
        if len(self._sessions) < OPEN:
            self.kinds["first"] += 1
            name = f"session-{self.kinds['first']}"
            self._sessions[name] = [{"role": "system", "content": self.rng.choice(self._systems)}]
            return name
        name = self.rng.choice(list(self._sessions))
        messages = self._sessions[name]
        changed = len(messages) >= 5 and self.rng.random() < CHANGED
        if changed:
            messages[3]["content"] = self._text(80)
        self.kinds["changed" if changed else "later"] += 1
        return name

    def _ask(self, name: str, messages: list[dict[str, str]]) -> str:
        body = {"model": self.model, "messages": messages, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        reply = self.http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": name}).raise_for_status()
        said = reply.json()
        self.reported[reply.headers["x-request-id"]] = said["usage"]["prompt_tokens_details"]["cached_tokens"]
        answer: str = said["choices"][0]["message"]["content"]
        return answer

    def _text(self, tokens: int) -> str:
        return "".join(self.rng.choices(LETTERS, k=tokens))
