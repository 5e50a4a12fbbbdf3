"""What a prefill's place in a queue depends on: its class's TTFT, its priority, its tenant, how long it waited."""

from collections.abc import Mapping
from dataclasses import dataclass

from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.errors import InvalidRequestError
from weft_router.signals.tracing import Trace


@dataclass(frozen=True, slots=True)
class Standing:
    """How urgent a prefill is; seconds. ``lost`` says that its session missed a TTFT already."""

    ttft_slo: float | None = None
    priority: int = 0
    tenant: str = ""
    lost: bool = False
    waited_s: float = 0.0
    class_: str = PLAIN_CLASS
    spans: Trace | None = None

    def headers(self) -> dict[str, str]:
        """Return the standing as headers between sidecars."""
        headers = {
            "x-weft-priority": str(self.priority),
            "x-weft-tenant": self.tenant,
            "x-weft-waited": f"{self.waited_s:.4f}",
        }
        if self.ttft_slo is not None:
            headers["x-weft-ttft-slo"] = repr(self.ttft_slo)
        if self.class_ != PLAIN_CLASS:
            headers["x-weft-class"] = self.class_
        if self.lost:
            headers["x-weft-lost"] = "1"
        if self.spans is not None:
            headers["traceparent"] = self.spans.header
        return headers


ANYBODY = Standing()


def urgency(config: RouterConfig) -> dict[str, tuple[float, int]]:
    """Return the TTFT SLO and the priority of every class."""
    return {name: (of.slo.ttft, of.qos.priority) for name, of in config.session_classes().items()}


def read_standing(headers: Mapping[str, str], spans: Trace | None = None) -> Standing:
    """Read the headers of a request for a prefill.

    Raises:
        InvalidRequestError: one of them is no number.
    """
    try:
        given = headers.get("x-weft-ttft-slo")
        return Standing(
            ttft_slo=float(given) if given is not None else None,
            priority=int(headers.get("x-weft-priority", "0")),
            tenant=headers.get("x-weft-tenant", ""),
            lost="x-weft-lost" in headers,
            waited_s=float(headers.get("x-weft-waited", "0")),
            class_=headers.get("x-weft-class", PLAIN_CLASS),
            spans=spans,
        )
    except ValueError as error:
        raise InvalidRequestError(f"x-weft-*: the standing of a prefill is not readable: {error}") from error
