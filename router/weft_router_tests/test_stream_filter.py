"""Streams on their way: usual events pass unparsed and say the same, first tokens show once, broken streams go on."""

import random
from array import array
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.adapter import AdapterOptions, EngineEndpoint, EngineRequest
from weft_router.engines.catalogue import adapter_for
from weft_router.openai import stream_filter as taps
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Kind, check_request
from weft_router.openai.reply import FirstToken, Reply
from weft_router.openai.stream_filter import StreamFilter

HEAD: dict[str, Any] = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m"}
DONE = b"data: [DONE]\n\n"


def event(chunk: object, *, end: bytes = b"\n\n") -> bytes:
    return b"data: " + orjson.dumps(chunk) + end


def choice(text: str | None, ids: list[int] | None = None, *, index: int = 0, **fields: Any) -> dict[str, Any]:
    made = {"index": index, "delta": {} if text is None else {"content": text}, "logprobs": None, "finish_reason": None}
    return {**made, **({} if ids is None else {"token_ids": ids}), **fields}


def chunk(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**HEAD, "choices": list(choices), **fields}


ROLE = chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None})

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['"', "\\", '\\"', "\n\n", '"},"', '"content":"x"', '"token_ids":[1]', "[DONE]", "\u2028", "🦊"]
)
id_lists = st.lists(st.integers(0, 200_000), min_size=1, max_size=3)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream as engines send them: mostly one text an event, with all that interrupts."""
    with_ids, end = draw(st.booleans()), draw(st.sampled_from([b"\n\n", b"\n\n", b"\r\n\r\n"]))
    parts = [event({**ROLE, "prompt_token_ids": [1, 2]} if with_ids else ROLE, end=end)]
    for _ in range(draw(st.integers(0, 12))):
        text, ids = draw(words), draw(id_lists) if with_ids else None
        kind = draw(st.integers(0, 9))
        if kind == 0:
            parts.append(b": keep-alive" + end)
        elif kind == 1:
            parts.append(event(chunk(choice(text, ids, index=1)), end=end))
        elif kind == 2:
            parts.append(event(chunk(choice(text, ids), usage={"prompt_tokens": 2, "completion_tokens": 1}), end=end))
        elif kind == 3:
            call = {"index": 0, "function": {"name": "f", "arguments": text}}
            parts.append(event(chunk(choice(None, ids, delta={"tool_calls": [call]})), end=end))
        else:
            parts.append(event(chunk(choice(text, ids)), end=end))
    last = choice("", draw(id_lists) if with_ids else None, finish_reason="stop")
    parts.append(event(chunk(last), end=end))
    parts.append(event(chunk(usage={"prompt_tokens": 2, "completion_tokens": 9}), end=end))
    return b"".join([*parts, b"data: [DONE]" + end])


def run(stream: bytes, cuts: list[int], **how: Any) -> tuple[bytes, StreamFilter]:
    stream_filter = StreamFilter("chat", **{"keep_usage": False, "keep_ids": False, **how})
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return b"".join(stream_filter.feed(stream[a:b]) for a, b in pairwise(edges)), stream_filter


def facts(stream_filter: StreamFilter) -> dict[str, Any]:
    reply = stream_filter.reply
    return {
        "text": "".join(reply.text), "ids": reply.ids, "calls": reply.tool_calls, "finish": reply.finish_reason,
        "usage": (reply.prompt_tokens, reply.completion_tokens), "tokens": stream_filter.tokens,
        "done": stream_filter.done, "complete": stream_filter.complete, "shown": reply.shown, "head": reply.head,
    }  # fmt: skip


@settings(max_examples=150)
@given(streams(), st.lists(st.integers(0, 5_000), max_size=12), st.booleans(), st.booleans())
def test_events_that_are_not_parsed_say_the_same_as_if_they_were(
    stream: bytes, cuts: list[int], keep_ids: bool, keep_usage: bool
) -> None:
    how = {"keep_ids": keep_ids, "keep_usage": keep_usage}
    out, stream_filter = run(stream, cuts, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taps, "MAX_FORMS", 0)
        expected, parsed = run(stream, cuts, **how)
    assert out == expected
    assert facts(stream_filter) == facts(parsed)


RECORDED = b"".join(
    [
        event({**ROLE, "prompt_token_ids": [1, 2]}),
        b": keep-alive\n\n",
        *(event(chunk(choice(text, [i]))) for i, text in enumerate(["Gr", "ü", "ße", "🦊", '"x"', "\n", "\\", " fin"])),
        b"event: note\ndata: 1\ndata: 2\n\n",
        b"data: " + orjson.dumps(chunk(choice("crlf", [9]))) + b"\r\n\r\n",
        b"\r\n: comment\r\n\r\n",
        event(chunk(choice("", [10], finish_reason="stop"))),
        event(chunk(usage={"prompt_tokens": 2, "completion_tokens": 9})),
        DONE,
    ]
)


def test_five_thousand_splits_give_the_same_bytes() -> None:
    dice = random.Random(1)
    expected, whole = run(RECORDED, [], keep_ids=True, keep_usage=True)
    assert expected == RECORDED
    said = facts(whole)
    stripped, _ = run(RECORDED, [])
    assert stripped.count(b"token_ids") == 0
    for number in range(5_000):
        cuts = [dice.randrange(len(RECORDED)) for _ in range(dice.choice([1, 2, 5, 40]))]
        kept = number % 2 == 0
        out, stream_filter = run(RECORDED, cuts, keep_ids=kept, keep_usage=kept)
        assert out == (RECORDED if kept else stripped)
        assert facts(stream_filter) == said


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 2**32), max_size=6), st.sampled_from(['"', "]", ',"prompt_token_ids":[1]', "x"]),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_ids_of_a_long_prompt_are_cut_out_as_if_they_were_parsed(
    ids: list[int], text: str, chat: bool, first: bool, keep_ids: bool
) -> None:
    inner: dict[str, Any] = choice(text) if chat else {"index": 0, "text": text, "finish_reason": None}
    given = {"prompt_token_ids": ids}
    if chat:
        made = {**given, **chunk(inner)} if first else chunk(inner, **given)
    else:
        made = chunk({**given, **inner} if first else {**inner, **given})
    found = []
    for limit in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(taps, "LONG", limit)
            stream_filter = StreamFilter("chat" if chat else "text", keep_usage=False, keep_ids=keep_ids)
            found.append(
                (
                    stream_filter.feed(event(made)),
                    stream_filter.reply.prompt_ids,
                    "".join(stream_filter.reply.text),
                    stream_filter.tokens,
                )
            )
    assert found[0] == found[1]
    assert found[0][2] == text
    assert (b"token_ids" in found[0][0].replace(b'\\"prompt_token_ids', b"")) == keep_ids


def test_a_long_prompts_ids_that_are_no_numbers_are_none() -> None:
    ids = b",".join([b"7"] * 4000)
    for wrong in (b'"a"', b"[1]", b"-1", b"4294967296", b"1.5", b"null"):
        raw = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}],"prompt_token_ids":[%b]}\n\n' % (
            ids + b"," + wrong
        )
        stream_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
        assert orjson.loads(stream_filter.feed(raw)[6:]) == {
            "id": "x",
            "choices": [{"index": 0, "delta": {"content": "a"}}],
        }
        assert stream_filter.reply.prompt_ids is None


def test_usual_events_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    real = orjson.loads

    def counted(raw: bytes) -> object:
        parsed.append(raw)
        return real(raw)

    monkeypatch.setattr(orjson, "loads", counted)
    events = [event(chunk(choice(f" w{i}", [i]))) for i in range(50)]
    stream_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    plain = [stream_filter.feed(one) for one in [event(ROLE), *events[:10]]] + [
        stream_filter.feed(b"".join(events[10:]))
    ]
    assert len(parsed) == 2
    assert b"".join(plain) == event(ROLE) + b"".join(event(chunk(choice(f" w{i}"))) for i in range(50))
    assert "".join(stream_filter.reply.text) == "".join(f" w{i}" for i in range(50))
    assert list(stream_filter.reply.output_ids or ()) == list(range(50))


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("with_ids", [False, True])
def test_a_long_stream_is_kept_in_little_room(size: int, with_ids: bool) -> None:
    events = [event(ROLE), *(event(chunk(choice(f" w{i}", [i] if with_ids else None))) for i in range(2_000))]
    stream_filter = StreamFilter("chat", keep_usage=False, keep_ids=False)
    for i in range(0, len(events), size):
        stream_filter.feed(b"".join(events[i : i + size]))
        assert len(stream_filter._texts) < 70
    reply = stream_filter.reply
    assert len(reply.text) < 60
    assert "".join(reply.text) == "".join(f" w{i}" for i in range(2_000))
    assert list(reply.output_ids or ()) == (list(range(2_000)) if with_ids else [])
    assert (stream_filter.tokens, reply.shown) == (2_000, 2_000 if with_ids else 0)


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("tail", [b'"', b'\\"', b"\\", b'x"},"y":{"content":"'])
def test_a_text_that_looks_like_structure_is_parsed(kind: Any, tail: bytes) -> None:
    stream_filter = StreamFilter(kind, keep_usage=True, keep_ids=True)
    part = (lambda text: {"delta": {"content": text}}) if kind == "chat" else (lambda text: {"text": text})
    for text in ("a", "b", tail.decode(), "c"):
        stream_filter.feed(event({"choices": [{"index": 0, **part(text), "finish_reason": None}]}))
    assert "".join(stream_filter.reply.text) == "ab" + tail.decode() + "c"


@pytest.mark.parametrize("ids", [b"1,,2", b",1", b"1,", b"", b" 1", b"1,x", b"-1"])
def test_ids_that_are_none_are_not_taken(ids: bytes) -> None:
    stream_filter = StreamFilter("chat", keep_usage=True, keep_ids=True)
    good = event(chunk(choice("a", [7])))
    stream_filter.feed(good)
    assert stream_filter.feed(good.replace(b"[7]", b"[" + ids + b"]")) in (good.replace(b"[7]", b"[" + ids + b"]"), b"")
    assert list(stream_filter.reply.output_ids or ())[:1] == [7]


def first(text: str = "Hel", **head: Any) -> FirstToken:
    return FirstToken(text, {**HEAD, **head}, array("I", [7]))


def shown_with(events: list[bytes], **how: Any) -> tuple[str, list[dict[str, Any]], StreamFilter]:
    out, stream_filter = run(b"".join(events), [], **how)
    chunks = [orjson.loads(part[6:]) for part in out.split(b"\n\n") if part.startswith(b"data: {")]
    text = "".join(one["delta"].get("content") or "" for c in chunks for one in c["choices"])
    return text, chunks, stream_filter


def test_a_token_that_was_shown_is_not_shown_again() -> None:
    events = [event(ROLE), *(event(chunk(choice(text, [i]))) for i, text in enumerate(["Hel", "lo", "!"]))]
    text, chunks, stream_filter = shown_with([*events, DONE], first=first(created=4))
    assert text == "lo!"
    assert {c["created"] for c in chunks} == {4}
    assert "role" not in chunks[0]["choices"][0]["delta"]
    assert "".join(stream_filter.reply.text) == "Hello!"
    assert (stream_filter.tokens, stream_filter.reply.diverged, stream_filter.complete) == (3, False, True)


def test_of_several_tokens_in_one_event_only_the_first_is_taken_out() -> None:
    text, _, stream_filter = shown_with([event(ROLE), event(chunk(choice("Hello", [7, 8]))), DONE], first=first())
    assert (text, "".join(stream_filter.reply.text), stream_filter.tokens) == ("lo", "Hello", 2)


def test_an_end_in_the_same_event_is_kept() -> None:
    end = event(chunk(choice("Hel", [7], finish_reason="stop")))
    text, chunks, _ = shown_with([event(ROLE), end, DONE], first=first())
    assert (text, chunks[-1]["choices"][0]["finish_reason"]) == ("", "stop")


def test_a_stream_that_breaks_after_the_shown_token_goes_on_from_it() -> None:
    given = FirstToken("Hel", HEAD, array("I", [7]), array("I", [1, 2]))
    _, _, stream_filter = shown_with([event(ROLE)], first=given)
    broken = Reply.load(stream_filter.reply.dump())
    assert (list(broken.ids or ()), broken.shown, broken.text) == ([1, 2, 7], 1, ["Hel"])
    text, _, rest = shown_with([event(ROLE), event(chunk(choice("lo", [8]))), DONE], resumed=broken)
    assert (text, "".join(rest.reply.text)) == ("lo", "Hello")
    _, _, later = shown_with([event(ROLE), event(chunk(choice("Hel", [7])))], first=given)
    assert list(later.reply.output_ids or ()) == [7]


@pytest.mark.parametrize("early", ["never", "before", "between"])
def test_whichever_leg_is_first_shows_the_first_token(early: str) -> None:
    adapter, ask = adapter_for("neuron"), neuron()
    stream_filter = adapter.sse_filter(ask)
    out = []
    ask.shown = early == "before"
    out.append(stream_filter.feed(event(ROLE)))
    ask.shown = early != "never"
    out += [stream_filter.feed(event(chunk(choice(text)))) for text in ("A", "B")]
    chunks = [orjson.loads(part[6:]) for one in out for part in one.split(b"\n\n") if part]
    texts = [c["choices"][0]["delta"].get("content") for c in chunks]
    assert texts == (["", "A", "B"] if early == "never" else ["B"])


def test_another_first_token_is_noticed() -> None:
    _, _, stream_filter = shown_with([event(ROLE), event(chunk(choice("Jo", [9]))), DONE], first=first())
    assert stream_filter.reply.diverged


def test_the_first_events_are_the_engines_own_form() -> None:
    role, token, rest = first().events("chat").split(b"\n\n")
    assert rest == b""
    assert orjson.loads(role[6:]) == ROLE
    assert orjson.loads(token[6:]) == chunk(choice("Hel"))
    assert orjson.loads(first().events("text")[6:])["choices"] == [
        {"index": 0, "text": "Hel", "logprobs": None, "finish_reason": None}
    ]


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("second", [("lo", [8]), ("Hello", [7, 8]), ("Hel", [7, 8])])
def test_a_hop_further_on_has_every_id_of_a_stream_whose_first_token_came_early(
    kind: Kind, second: tuple[str, list[int]]
) -> None:
    """``second`` is the decode engine's next event: a token of its own, or the first one with it."""
    early = FirstToken("Hel", HEAD, array("I", [7]), array("I", [1, 2]))
    sidecar = StreamFilter(kind, keep_usage=False, keep_ids=True, first=early)
    text, ids = second

    def said(shown: str, of: list[int]) -> bytes:
        if kind == "chat":
            return event(chunk(choice(shown, of)))
        return event({**HEAD, "choices": [{"index": 0, "text": shown, "finish_reason": None, "token_ids": of}]})

    events = early.events(kind, with_ids=True)
    if kind == "chat":
        events += sidecar.feed(event({**ROLE, "prompt_token_ids": [1, 2]}))
    for part in (*(() if 7 in ids else (said("Hel", [7]),)), said(text, ids), said("!", [9])):
        events += sidecar.feed(part)
    coordinator = StreamFilter(kind, keep_usage=False, keep_ids=False)
    assert b"token_ids" not in coordinator.feed(events)
    reply = coordinator.reply
    assert "".join(reply.text) == ("Hel!" if text == "Hel" else "Hello!")
    assert list(reply.prompt_ids or ()) == [1, 2]
    assert list(reply.output_ids or ()) == [7, 8, 9]


SURE = {"stream": True, "temperature": 0, "max_tokens": 9}


@pytest.mark.parametrize(
    ("fields", "reply", "shows"),
    [
        (SURE, {}, True),
        ({**SURE, "temperature": 0.5}, {}, False),
        ({**SURE, "temperature": None}, {}, False),
        ({**SURE, "stream": False}, {}, False),
        ({**SURE, "logprobs": True}, {}, False),
        ({**SURE, "tools": [{}]}, {}, False),
        ({**SURE, "max_tokens": 1}, {}, False),
        (SURE, {"finish_reason": "stop"}, False),
        (SURE, {"message": {"role": "assistant", "content": ""}}, False),
        (SURE, {"message": {"role": "assistant", "content": "x", "reasoning_content": "hm"}}, False),
    ],
)
def test_the_prefills_token_is_shown_only_where_decode_finds_the_same(
    fields: dict[str, Any], reply: dict[str, Any], shows: bool
) -> None:
    model, limits = ModelConfig.model_validate({"name": "m", "maxModelLen": 100}), LimitsConfig.model_validate({})
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    ask = EngineRequest(check_request("/v1/chat/completions", body, RequestLimits(model, limits)), "weft-1")
    params = dict.fromkeys(("remote_engine_id", "remote_request_id", "remote_host", "remote_port"), "x")
    params |= {"do_remote_prefill": True, "remote_block_ids": [[1]]}  # type: ignore[dict-item]
    given = {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "length", **reply}
    raw = orjson.dumps({**HEAD, "choices": [given], "kv_transfer_params": params})
    adapter = adapter_for("vllm", traits=AdapterOptions(show_first=True))
    handed = adapter.read_prefill(ask, raw)
    assert (handed.first is not None) == shows
    assert adapter_for("vllm").read_prefill(ask, raw).first is None
    if handed.first is not None:
        assert b'"content":"A"' in adapter.first_event(ask, handed.first)


def cut_after(events: list[bytes], **how: Any) -> Reply:
    _, stream_filter = run(b"".join(events), [], **how)
    assert not stream_filter.complete
    return Reply.load(orjson.loads(orjson.dumps(stream_filter.reply.dump())))


FIRST_LEG = [
    event({**ROLE, "prompt_token_ids": [1, 2, 3], "system_fingerprint": "f"}),
    event(chunk(choice("Gr", [4]))),
    event(chunk(choice("ü", [5, 6]))),
    event(chunk(choice("", [7]))),
]


def test_a_broken_stream_goes_on_as_if_nothing_had_happened() -> None:
    broken = cut_after(FIRST_LEG)
    assert (broken.shown, list(broken.output_ids or ()), list(broken.prompt_ids or ())) == (3, [4, 5, 6], [1, 2, 3])
    other = {**HEAD, "id": "c2", "created": 9}
    second = [
        event({**ROLE, **other, "prompt_token_ids": [1, 2, 3, 4, 5, 6]}),
        event({**chunk(choice("ß", [7, 8])), **other}),
        event({**chunk(choice("e", [9], finish_reason="stop")), **other}),
        event({**chunk(usage={"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9}), **other}),
        DONE,
    ]
    text, chunks, stream_filter = shown_with(second, resumed=broken, keep_usage=True)
    assert text == "ße"
    assert all((c["id"], c["created"]) == ("c1", 5) for c in chunks)
    assert not any("role" in one["delta"] for c in chunks for one in c["choices"])
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    reply = stream_filter.reply
    assert "".join(reply.text) == "Grüße"
    assert list(reply.ids or ()) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, stream_filter.complete) == (
        3,
        6,
        "stop",
        True,
    )


@pytest.mark.parametrize("cut", range(1, 4))
def test_wherever_it_breaks_each_token_comes_once(cut: int) -> None:
    tokens = [("a", 4), ("b", 5), ("c", 6), ("d", 7)]
    broken = cut_after([FIRST_LEG[0], *(event(chunk(choice(text, [i]))) for text, i in tokens[:cut])])
    rest = [event(ROLE), *(event(chunk(choice(text, [i]))) for text, i in tokens[cut:]), DONE]
    text, _, stream_filter = shown_with(rest, resumed=broken)
    assert text == "abcd"[cut:]
    assert "".join(stream_filter.reply.text) == "abcd"
    assert list(stream_filter.reply.output_ids or ()) == [4, 5, 6, 7]


@pytest.mark.parametrize("dumped", [{}, {"kind": "x"}, {"kind": "chat", "text": 1, "shown": 0}, {"kind": "chat"}])
def test_half_a_dumped_reply_is_refused(dumped: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="dumped"):
        Reply.load(dumped)


def neuron(**fields: Any) -> EngineRequest:
    model, limits = ModelConfig.model_validate({"name": "m", "maxModelLen": 100}), LimitsConfig.model_validate({})
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, **fields}
    peer = EngineEndpoint("10.0.0.1", 1)
    return EngineRequest(
        check_request("/v1/chat/completions", body, RequestLimits(model, limits)), "weft-1", prefill=peer, decode=peer
    )


def test_neurons_prefill_shows_the_first_token_and_decode_the_rest() -> None:
    n = 1
    adapter, ask = adapter_for("neuron"), neuron(temperature=0)
    assert adapter.prefill_sse_filter(neuron(n=2, temperature=0)) is None
    assert adapter.prefill_sse_filter(neuron(temperature=0.7)) is None
    opening = [event(chunk(choice(None, delta={"role": "assistant", "content": ""}, index=i))) for i in range(n)]
    tokens = [event(chunk(choice(f"A{i}", index=i, finish_reason="length"))) for i in range(n)]
    stream_filter = adapter.prefill_sse_filter(ask)
    assert stream_filter is not None
    shown = b"".join(
        stream_filter.feed(part) for part in [*opening, *tokens, event(chunk(usage={"prompt_tokens": 1})), DONE]
    )
    assert stream_filter.done
    assert stream_filter.tokens == n
    chunks = [orjson.loads(part[6:]) for part in shown.split(b"\n\n") if part]
    assert all(c["id"] == "weft-1" and c["choices"][0]["finish_reason"] is None for c in chunks)
    assert len(chunks) == 2 * n
    decode = adapter.sse_filter(ask)
    ask.shown = True
    again = [event(chunk(choice(f"A{i}", index=i))) for i in range(n)]
    more = [event(chunk(choice(f"B{i}", index=i))) for i in range(n)]
    more += [event(chunk(choice(f"C{i}", index=i, finish_reason="stop"))) for i in range(n)]
    out = b"".join(decode.feed(part) for part in [*opening, *again, *more, DONE])
    rest = [orjson.loads(part[6:]) for part in out.split(b"\n\n") if part.startswith(b"data: {")]
    assert [c["choices"][0]["delta"]["content"] for c in rest] == [f"B{i}" for i in range(n)] + [
        f"C{i}" for i in range(n)
    ]
    assert all(c["id"] == "weft-1" for c in rest)
    assert decode.complete
    assert adapter.prefill_sse_filter(neuron(stream=False)) is None
