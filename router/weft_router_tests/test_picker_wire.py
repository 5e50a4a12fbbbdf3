"""Messages of Envoy's ext_proc protocol, read and written as Envoy's own definitions say."""

from typing import Any

import pytest

from weft_router.picker import ext_proc_pb2 as pb
from weft_router.picker.messages import (
    Abort,
    BodyPart,
    BodyReply,
    HeadersPart,
    HeadersReply,
    ImmediateReply,
    Modes,
    Mutation,
    Reply,
    TrailersPart,
    TrailersReply,
    WholeBodyReply,
)
from weft_router.picker.wire import read, written


def asked(**fields: Any) -> Any:
    return pb.ProcessingRequest(**fields)


def back(reply: Reply) -> Any:
    return pb.ProcessingResponse.FromString(written(reply))


def test_headers_are_read_with_the_modes_and_the_subset() -> None:
    message = asked(request_headers={"headers": {"headers": [{"key": ":path", "raw_value": b"/v1"}]}})
    message.protocol_config.request_body_mode = 2
    message.protocol_config.response_body_mode = 4
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.update({"x-gateway-destination-endpoint-subset": ["10.0.0.7:8080", "10.0.0.8:8080"]})
    found = read(message.SerializeToString())
    assert found is not None
    assert found.part == HeadersPart("request", ((":path", "/v1"),))
    assert found.modes == Modes("buffered", "full-duplex")
    assert found.subset == frozenset({"10.0.0.7:8080", "10.0.0.8:8080"})


def test_a_proxy_that_does_not_tell_its_modes_follows_the_picker_protocol() -> None:
    found = read(asked(request_headers={"end_of_stream": True}).SerializeToString())
    assert found is not None
    assert found.part == HeadersPart("request", (), end=True)
    assert found.modes is None
    assert found.subset is None
    assert Modes().obstacle() is None


@pytest.mark.parametrize("side", ["request", "response"])
def test_bodies_and_trailers_are_read(side: Any) -> None:
    body = read(asked(**{f"{side}_body": {"body": b"x", "end_of_stream": True}}).SerializeToString())
    assert body is not None
    assert body.part == BodyPart(side, b"x", end=True)
    trailers = read(asked(**{f"{side}_trailers": {}}).SerializeToString())
    assert trailers is not None
    assert trailers.part == TrailersPart(side)


def test_a_message_that_says_nothing_is_passed_over() -> None:
    assert read(b"") is None


def test_a_chosen_endpoint_is_in_the_headers_and_in_the_metadata() -> None:
    mutation = Mutation((("x-a", "1"), ("x-gateway-destination-endpoint", "w:1")), ("cookie",), "w:1")
    for message, common in (
        (m := back(HeadersReply("request", mutation)), m.request_headers.response),
        (m := back(WholeBodyReply(b"{}", mutation)), m.request_body.response),
    ):
        fields = {o.header.key: o.header.raw_value for o in common.header_mutation.set_headers}
        assert fields == {"x-a": b"1", "x-gateway-destination-endpoint": b"w:1"}
        assert {o.append_action for o in common.header_mutation.set_headers} == {2}
        assert list(common.header_mutation.remove_headers) == ["cookie"]
        assert common.clear_route_cache
        assert message.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "w:1"


def test_pieces_of_a_body_are_streamed() -> None:
    message = back(BodyReply("response", b"x", end=True))
    streamed = message.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"x", True)
    assert back(BodyReply("request", b"x")).WhichOneof("response") == "request_body"


def test_an_immediate_answer() -> None:
    immediate = back(ImmediateReply(401, (("content-type", "application/json"),), b"{}")).immediate_response
    assert (immediate.status.code, immediate.body) == (401, b"{}")
    assert [o.header.key for o in immediate.headers.set_headers] == ["content-type"]


@pytest.mark.parametrize("side", ["request", "response"])
def test_an_unchanged_part_goes_on(side: Any) -> None:
    assert back(HeadersReply(side)).WhichOneof("response") == f"{side}_headers"
    assert back(TrailersReply(side)).WhichOneof("response") == f"{side}_trailers"


def test_the_end_of_a_stream_is_no_message() -> None:
    with pytest.raises(TypeError):
        written(Abort("gone"))
