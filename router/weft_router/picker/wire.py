"""Read and write the messages of Envoy's ext_proc protocol (envoy.service.ext_proc.v3)."""

from collections.abc import Iterable
from typing import Any, Final

from weft_router.picker import ext_proc_pb2 as pb
from weft_router.picker.headers import DESTINATION
from weft_router.picker.messages import (
    BodyMode,
    BodyPart,
    BodyReply,
    Fields,
    HeadersPart,
    HeadersReply,
    ImmediateReply,
    Modes,
    Mutation,
    Received,
    Reply,
    Side,
    TrailersPart,
    TrailersReply,
    WholeBodyReply,
)

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
METADATA: Final = "envoy.lb"
"""The namespace of metadata that names the chosen endpoint."""
SUBSET_METADATA: Final = "envoy.lb.subset_hint"
SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
_MODES: Final[dict[int, BodyMode]] = {
    0: "none", 1: "streamed", 2: "buffered", 3: "buffered-partial", 4: "full-duplex", 5: "grpc",
}  # fmt: skip
_OVERWRITE: Final = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def read(data: bytes) -> Received | None:
    """Return what a message of the proxy says; None where it says nothing that a picker knows.

    Raises:
        google.protobuf.message.DecodeError: it is no such message.
    """
    message: Any = pb.ProcessingRequest.FromString(data)
    kind = message.WhichOneof("request")
    if kind is None:
        return None
    side: Side = "request" if kind.startswith("request") else "response"
    given = getattr(message, kind)
    part: HeadersPart | BodyPart | TrailersPart
    if kind.endswith("_headers"):
        part = HeadersPart(side, _fields(given.headers.headers), given.end_of_stream)
    elif kind.endswith("_body"):
        part = BodyPart(side, given.body, given.end_of_stream)
    else:
        part = TrailersPart(side)
    return Received(part, _modes(message), _subset(message))


def written(reply: Reply) -> bytes:
    """Return a reply as the proxy reads it.

    Raises:
        TypeError: it is no message, but the end of the stream.
    """
    message: Any = pb.ProcessingResponse()
    if isinstance(reply, HeadersReply):
        common = message.request_headers if reply.side == "request" else message.response_headers
        _mutate(common.response, reply.mutation)
        common.response.SetInParent()
        _name_endpoint(message, reply.mutation.endpoint)
    elif isinstance(reply, BodyReply):
        body = message.request_body if reply.side == "request" else message.response_body
        streamed = body.response.body_mutation.streamed_response
        streamed.body = reply.data
        streamed.end_of_stream = reply.end
    elif isinstance(reply, WholeBodyReply):
        whole = message.request_body.response
        _mutate(whole, reply.mutation)
        whole.body_mutation.body = reply.data
        _name_endpoint(message, reply.mutation.endpoint)
    elif isinstance(reply, TrailersReply):
        trailers = message.request_trailers if reply.side == "request" else message.response_trailers
        trailers.SetInParent()
    elif isinstance(reply, ImmediateReply):
        immediate = message.immediate_response
        immediate.status.code = reply.status
        immediate.body = reply.body
        immediate.details = "weft"
        _set_headers(immediate.headers, reply.fields)
    else:
        raise TypeError(f"{reply!r} is no message")
    result: bytes = message.SerializeToString()
    return result


def _fields(headers: Iterable[Any]) -> Fields:
    return tuple((h.key.lower(), h.raw_value.decode("latin-1") if h.raw_value else h.value) for h in headers)


def _modes(message: Any) -> Modes | None:
    if not message.HasField("protocol_config"):
        return None
    config = message.protocol_config
    return Modes(_MODES.get(config.request_body_mode, "none"), _MODES.get(config.response_body_mode, "none"))


def _subset(message: Any) -> frozenset[str] | None:
    """Return the endpoints that the proxy allows; None where it allows all."""
    metadata = message.metadata_context.filter_metadata
    if SUBSET_METADATA not in metadata:
        return None
    fields = metadata[SUBSET_METADATA].fields
    if SUBSET_KEY not in fields:
        return None
    given = fields[SUBSET_KEY]
    listed = [value.string_value for value in given.list_value.values] or given.string_value.split(",")
    return frozenset(endpoint.strip() for endpoint in listed if endpoint.strip())


def _mutate(common: Any, mutation: Mutation) -> None:
    if mutation.fields or mutation.removed:
        _set_headers(common.header_mutation, mutation.fields)
        common.header_mutation.remove_headers.extend(mutation.removed)
    # The route may depend on the headers that were set.
    common.clear_route_cache = bool(mutation.endpoint)


def _set_headers(mutation: Any, fields: Fields) -> None:
    for name, value in fields:
        option = mutation.set_headers.add()
        option.header.key = name
        option.header.raw_value = value.encode("latin-1", "replace")
        option.append_action = _OVERWRITE


def _name_endpoint(message: Any, endpoint: str) -> None:
    if endpoint:
        message.dynamic_metadata.update({METADATA: {DESTINATION: endpoint}})
