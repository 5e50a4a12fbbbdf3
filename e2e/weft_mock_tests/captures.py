"""Read captured exchanges and compare an engine's answers with them; ``captures/README.md`` says how to read them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

FOLDER = Path(__file__).parent / "captures"
_KIND = re.compile(r"<(?:(\w+):)?(int|number|str|list|object|any)>")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "number": (int, float),
    "str": (str,),
    "list": (list,),
    "object": (dict,),
}
Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a capture; ``together`` with the next one."""

    role: Role
    method: str
    path: str
    headers: Mapping[str, str]
    body: object
    together: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of a capture: a body, or the lines of a stream."""

    role: Role
    status: int
    body: object | None
    lines: tuple[str, ...]


def read(name: str) -> Iterator[tuple[list[Request], list[Answer]]]:
    """Yield the requests that are sent at once and the replies to them, group by group."""
    requests: list[Request] = []
    answers: list[Answer] = []
    for head, lines in _sections((FOLDER / f"{name}.txt").read_text()):
        words = head[4:].split()
        if head.startswith(">>> "):
            if answers:
                yield requests, answers
                requests, answers = [], []
            requests.append(_request(words, lines))
        else:
            answers.append(_answer(words, lines))
    yield requests, answers


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    head, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith((">>> ", "<<< ")):
            if head:
                yield head, lines
            head, lines = line, []
        else:
            lines.append(line)
    yield head, lines


def _role(word: str) -> Role:
    return "prefill" if word == "prefill" else "decode"


def _request(words: list[str], lines: list[str]) -> Request:
    start = next(at for at, line in enumerate(lines) if line.startswith("{"))
    headers = dict(line.split(": ", 1) for line in lines[:start])
    body = orjson.loads("\n".join(lines[start:]))
    return Request(_role(words[0]), words[1], words[2], headers, body, words[-1] == "+")


def _answer(words: list[str], lines: list[str]) -> Answer:
    status = int(words[1])
    if lines[0].startswith("{"):
        return Answer(_role(words[0]), status, orjson.loads("\n".join(lines)), ())
    return Answer(_role(words[0]), status, None, tuple(lines))


def filled(value: object, bound: Mapping[str, object]) -> object:
    """Return a request's value with what was bound in place of its names."""
    if isinstance(value, str) and value.startswith("$"):
        return bound[value[1:]]
    if isinstance(value, dict):
        return {key: filled(each, bound) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, bound) for each in value]
    return value


def compare(expected: object, actual: object, bound: dict[str, object], where: str = "reply") -> None:
    """Compare a value with the capture's and bind what it names.

    Raises:
        AssertionError: they differ; the message says where.
    """
    if isinstance(expected, str) and (kind := _KIND.fullmatch(expected)):
        types = _TYPES.get(kind[2])
        assert types is None or (isinstance(actual, types) and not isinstance(actual, bool)), f"{where}: {actual!r}"
        if kind[1]:
            bound[kind[1]] = actual
    elif isinstance(expected, dict):
        assert isinstance(actual, dict), f"{where}: {actual!r}"
        assert set(actual) == set(expected), f"{where}: {set(actual) ^ set(expected)}"
        for key, value in expected.items():
            compare(value, actual[key], bound, f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(actual, list), f"{where}: {actual!r}"
        assert len(actual) == len(expected), f"{where}: {len(actual)} entries"
        for at, (one, other) in enumerate(zip(expected, actual, strict=True)):
            compare(one, other, bound, f"{where}[{at}]")
    else:
        wanted = filled(expected, bound)
        assert actual == wanted, f"{where}: {actual!r} is not {wanted!r}"


def compare_stream(expected: tuple[str, ...], actual: list[str], bound: dict[str, object]) -> None:
    """Compare the lines of a stream with the capture's, blank lines left out.

    Raises:
        AssertionError: they differ; the message says where.
    """
    wanted = list(_events(expected))
    got = list(_events(actual))
    at = 0
    for index, (name, line) in enumerate(wanted):
        if line == "...":
            repeated = wanted[index - 1]
            # What follows the dots is as long as what is left must be.
            while len(got) - at > len(wanted) - index - 1:
                _compare_event(repeated, got[at], bound, f"event {at}")
                at += 1
            continue
        assert at < len(got), f"the stream ends before {line!r}"
        _compare_event((name, line), got[at], bound, f"event {at}")
        at += 1
    assert at == len(got), f"the stream goes on: {got[at:]!r}"


def _events(lines: tuple[str, ...] | list[str]) -> Iterator[tuple[str, str]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line
        elif line:
            yield name, line
            name = ""


def _compare_event(expected: tuple[str, str], actual: tuple[str, str], bound: dict[str, object], where: str) -> None:
    assert actual[0] == expected[0], f"{where}: {actual[0]!r} is not {expected[0]!r}"
    if not expected[1].startswith("data: {"):
        assert actual[1] == expected[1], f"{where}: {actual[1]!r}"
        return
    assert actual[1].startswith("data: {"), f"{where}: {actual[1]!r}"
    compare(orjson.loads(expected[1][6:]), orjson.loads(actual[1][6:]), bound, where)
