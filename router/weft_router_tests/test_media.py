"""Which media a request may bring: in itself, and from the hosts that a service names."""

from typing import Any

import orjson
import pytest

from weft_router.config import LimitsConfig, ModelConfig, RequestsConfig
from weft_router.config.file import read_config
from weft_router.config.section import ConfigError
from weft_router.errors import InvalidRequestError
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import check_request
from weft_router_tests.stack import router_json
from weft_router_tests.test_fields import MODEL, allowing

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
DATA = "data:image/png;base64,AAAA"
METADATA = "http://169.254.169.254/latest/meta-data/"


def ask(part: dict[str, Any], allowed: RequestLimits, *, path: str = CHAT) -> InvalidRequestError | None:
    content = [{"type": "text" if path == CHAT else "input_text", "text": "what is it?"}, part]
    item = {"role": "user", "content": content}
    field: dict[str, Any] = (
        {"messages": [{"role": "system", "content": "x"}, item]} if path == CHAT else {"input": [item]}
    )
    try:
        check_request(path, {"model": "m", **field}, allowed)
    except InvalidRequestError as error:
        return error
    return None


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


PARTS: list[tuple[dict[str, Any], str]] = [
    (picture(METADATA), "image_url.url"),
    ({"type": "image_url", "image_url": METADATA}, "image_url"),
    ({"type": "video_url", "video_url": {"url": METADATA}}, "video_url.url"),
    ({"type": "audio_url", "audio_url": {"url": METADATA}}, "audio_url.url"),
    ({"type": "input_audio", "input_audio": {"data": METADATA, "format": "wav"}}, "input_audio.data"),
    ({"type": "file", "file": {"file_data": METADATA}}, "file.file_data"),
    ({"type": "file", "file": {"url": METADATA}}, "file.url"),
    ({"type": "input_file", "file_data": METADATA}, "file_data"),
    ({"type": "image", "image": [DATA, METADATA]}, "image[1]"),
    ({"type": "text", "text": "x", "uuid": "u", "image_url": METADATA}, "image_url"),
    ({"type": "vendor", "video": {"frames": [METADATA]}}, "video.frames[0]"),
    ({"type": "input_image", "image_url": METADATA}, "image_url"),
    ({"type": "input_file", "file_url": METADATA}, "file_url"),
    ({"type": "tool_result", "content": [picture(METADATA)]}, "content[0].image_url.url"),
    ({"type": "tool_result", "content": {"type": ["image"], "image": METADATA}}, "content.image"),
    ({"type": "text", "text": "x", "parts": [[{"more": {"file": [METADATA]}}]]}, "parts[0][0].more.file[0]"),
]


@pytest.mark.parametrize(("part", "place"), PARTS)
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_no_part_has_an_engine_fetch_what_the_service_does_not_name(
    part: dict[str, Any], place: str, path: str
) -> None:
    error = ask(part, allowing(), path=path)
    assert error is not None
    where = "messages[1].content[1]" if path == CHAT else "input[0].content[1]"
    assert (error.status, error.param, error.code) == (400, f"{where}.{place}", "invalid_url")
    inside = orjson.loads(orjson.dumps(part).replace(METADATA.encode(), DATA.encode()))
    assert ask(inside, allowing(), path=path) is None


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("", True),
        ("AAAA", True),
        ("//uQRAAAAWMS0Xy/+9g=", True),
        ("/9j/4A==", True),
        ("data:audio/wav;base64,AAAA", True),
        ("/etc/passwd", False),
        ("file:///etc/passwd", False),
        ("https://media.example.com/", False),
        ("../../x.wav", False),
        ("AAA=AAAA", False),
        ("AAA", False),
        ("AAA\u00e9", False),
        ("AA A", False),
    ],
)
def test_what_stands_for_the_media_itself_is_base64(text: str, fine: bool) -> None:
    allowed = allowing(hosts=("media.example.com",))
    assert (ask({"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}, allowed) is None) is fine
    for path in (CHAT, RESPONSES):
        assert (ask({"type": "file", "file": {"file_data": text}}, allowed, path=path) is None) is fine
    assert (ask({"type": "input_file", "file_data": text}, allowed, path=RESPONSES) is None) is fine


ADDRESSES = [
    METADATA, "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/", "http://169.254.43518/",
    "http://[::ffff:169.254.169.254]/", "http://[fd00:ec2::254]/", "http://localhost/", "http://127.1/", "https://0/",
    "https://media.example.com@169.254.169.254/", "https://media.example.com:443@10.0.0.1/",
    "https://169.254.169.254/?https://media.example.com/", "https://169.254.169.254#media.example.com",
    "https://169.254.169.254\\.media.example.com/", "https://media.example.com\\@10.0.0.1/", "//media.example.com/x",
    "https:media.example.com", "https:///media.example.com/", "https://media.example.com.evil.net/",
    "https://evilmedia.example.com/", "https://media.example.com./", "https://media.example.com:8443/",
    "http://media.example.com/", " https://media.example.com/", "https://media.example.com/\r\nHost: x",
    "https://medi\u0430.example.com/", "https://media\u3002example.com/", "https://%6dedia.example.com/",
    "file:///etc/passwd", "/etc/passwd", "etc/passwd.png", "ftp://media.example.com/x", "gopher://media.example.com/",
    "http\u017f://media.example.com/", "http\u017f://media.example.com:443/",
    "s3://bucket/x", "DATA:image/png;base64,AAAA", " data:,x", "jar:https://media.example.com/", "about:blank",
]  # fmt: skip


@pytest.mark.parametrize("url", ADDRESSES)
def test_no_spelling_of_an_address_passes_for_a_host_that_is_named(url: str) -> None:
    error = ask(picture(url), allowing(hosts=("media.example.com",)))
    assert error is not None
    assert error.param == "messages[1].content[1].image_url.url"
    assert "169.254.169.254/latest" not in error.message


def test_a_letter_that_only_folds_to_ascii_is_none() -> None:
    allowed = allowing(hosts=("kiosk.example.com",))
    assert ask(picture("https://KIOSK.example.com/"), allowed) is None
    assert ask(picture("https://\u212aiosk.example.com/"), allowed) is not None


@pytest.mark.parametrize(
    ("hosts", "url", "fine"),
    [
        ("media.example.com", "https://media.example.com/a.png?x=1#y", True),
        ("media.example.com", "HTTPS://Media.Example.COM", True),
        ("Media.example.com", "https://media.example.com:443/a", True),
        ("media.example.com:8443", "https://media.example.com:8443/a", True),
        ("media.example.com:8443", "https://media.example.com/a", False),
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://evilexample.com/", False),
    ],
)
def test_hosts_are_named_whole_or_by_their_domain(hosts: str, url: str, fine: bool) -> None:
    assert (ask(picture(url), allowing(hosts=(hosts,))) is None) is fine
    plain = url.replace("https", "http").replace("HTTPS", "http").replace(":443", ":80")
    assert ask(picture(plain), allowing(hosts=(hosts,))) is not None
    assert (ask(picture(plain), allowing(hosts=(hosts,), http=True)) is None) is fine


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "localhost", "0x7f.1", "1.2.3.0x4", "[::1]", "*", "https://a.b", "a.b/", "a..b"]
)
def test_only_names_can_be_named(host: str) -> None:
    with pytest.raises(ConfigError, match=r"requests\.mediaHosts"):
        read_config(orjson.dumps({**router_json(), "requests": {"mediaHosts": [host]}}), source="router.json")


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("kind", ["image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"])
def test_what_is_unpacked_in_place_of_media_needs_leave(kind: str, path: str) -> None:
    for part in ({"type": kind, "data": "AAAA"}, {"type": "text", "text": "x", "uuid": "u", kind: "AAAA"}):
        error = ask(part, allowing(), path=path)
        assert error is not None
        assert error.code == "unsupported_parameter"
        assert ask(part, allowing(kind), path=path) is None


@pytest.mark.parametrize(
    "content", ["what is it?", None, [{"type": "text", "text": "x"}]], ids=["text", "none", "parts"]
)
def test_fields_of_a_message_itself_are_looked_at(content: object) -> None:
    for name, value, code in (
        ("image_url", {"url": METADATA}, "invalid_url"),
        ("video", METADATA, "invalid_url"),
        ("image_embeds", "AAAA", "unsupported_parameter"),
    ):
        message = {"role": "user", "content": content, name: value}
        with pytest.raises(InvalidRequestError, match=rf"messages\[0\]\.{name}") as refused:
            check_request(CHAT, {"model": "m", "messages": [message]}, allowing())
        assert refused.value.code == code
    answer = {"role": "assistant", "content": content, "audio": {"id": "audio_1"}, "tool_calls": []}
    check_request(CHAT, {"model": "m", "messages": [answer]}, allowing())


def test_outputs_of_tools_are_looked_into() -> None:
    output = [{"type": "input_image", "image_url": METADATA}]
    items: list[Any] = [
        {"type": "function_call_output", "call_id": "c", "output": output},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "x", "image_url": METADATA}},
    ]
    for item in items:
        with pytest.raises(InvalidRequestError, match=r"input\[0\]\.output"):
            check_request(RESPONSES, {"model": "m", "input": [item]}, allowing())
    cited = {"type": "url_citation", "url": "https://anywhere.example/"}
    said = {"type": "output_text", "text": "x", "annotations": [cited]}
    check_request(RESPONSES, {"model": "m", "input": [{"role": "assistant", "content": [said]}]}, allowing())


def test_a_front_has_looked_before_a_sidecar() -> None:
    model = ModelConfig.model_validate({"name": "m", "maxModelLen": 1000})
    assert ask(picture(METADATA), RequestLimits(model, LimitsConfig(), None)) is None
    assert ask(picture(METADATA), RequestLimits(MODEL, LimitsConfig(), RequestsConfig())) is not None
