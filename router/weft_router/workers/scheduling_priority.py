"""What decides a prefill's position in a queue: its class's TTFT, priority, tenant and time waited."""

from dataclasses import dataclass
from typing import Final

from weft_router.config import PLAIN_CLASS, RouterConfig
from weft_router.errors import InvalidRequestError
from weft_router.http.header_lines import checked
from weft_router.telemetry.tracing import Trace

DEATHS_HEADER: Final = "x-weft-deaths"
RETRIED_HEADER: Final = "x-weft-retried"
ADAPTER_HEADER: Final = "x-weft-adapter"
MOVED_HEADER: Final = "x-weft-moved"
_REMEMBERED: Final = 1024
_lines: Final[dict[tuple[float | None, int, str, str], str]] = {}


@dataclass(frozen=True, slots=True)
class SchedulingPriority:
    """How urgent a prefill is; seconds. ``lost`` says that its session missed a TTFT already."""

    ttft_slo: float | None = None
    priority: int = 0
    tenant: str = ""
    lost: bool = False
    waited_s: float = 0.0
    class_: str = PLAIN_CLASS
    spans: Trace | None = None
    deaths: int = 0
    """Engines that ended while they worked on its request."""
    adapter: str = ""
    """The version of the adapter that it needs, where sidecars load it."""
    moved: str = ""
    """The session whose history its worker has, which that session left: it prefills this, though it leaves itself."""

    def lines(self) -> str:
        """Return it as lines of headers between sidecars."""
        always = (self.ttft_slo, self.priority, self.tenant, self.class_)
        lines = _lines.get(always)
        if lines is None:
            lines = self._always()
            if len(_lines) >= _REMEMBERED:
                _lines.clear()
            _lines[always] = lines
        lines += f"x-weft-waited: {int(self.waited_s * 1e6)}e-6\r\n"  # a tenth of what formatting a float takes
        if self.lost:
            lines += "x-weft-lost: 1\r\n"
        if self.deaths:
            lines += f"{DEATHS_HEADER}: {self.deaths}\r\n"
        if self.adapter:
            lines += f"{ADAPTER_HEADER}: {checked(self.adapter)}\r\n"
        if self.moved:
            lines += f"{MOVED_HEADER}: {checked(self.moved)}\r\n"
        if self.spans is not None:
            lines += f"traceparent: {checked(self.spans.header)}\r\n"
        return lines

    def _always(self) -> str:
        """Return the lines of what is the same for all rounds of a tenant in a class."""
        lines = f"x-weft-priority: {self.priority}\r\nx-weft-tenant: {checked(self.tenant)}\r\n"
        if self.ttft_slo is not None:
            lines += f"x-weft-ttft-slo: {self.ttft_slo!r}\r\n"
        if self.class_ != PLAIN_CLASS:
            lines += f"x-weft-class: {checked(self.class_)}\r\n"
        return lines


DEFAULT_PRIORITY = SchedulingPriority()


def urgency(config: RouterConfig) -> dict[str, tuple[float, int]]:
    """Return the TTFT SLO and the priority of every class."""
    return {name: (of.slo.ttft, of.qos.priority) for name, of in config.session_classes().items()}


def read_priority(headers: dict[str, str]) -> SchedulingPriority:
    """Read the headers of a request for a prefill.

    Raises:
        InvalidRequestError: one of them is no number.
    """
    try:
        given = headers.get("x-weft-ttft-slo")
        return SchedulingPriority(
            ttft_slo=float(given) if given is not None else None,
            priority=int(headers.get("x-weft-priority", "0")),
            tenant=headers.get("x-weft-tenant", ""),
            lost="x-weft-lost" in headers,
            waited_s=float(headers.get("x-weft-waited", "0")),
            class_=headers.get("x-weft-class", PLAIN_CLASS),
            deaths=int(headers.get(DEATHS_HEADER, "0")),
            adapter=headers.get(ADAPTER_HEADER, ""),
            moved=headers.get(MOVED_HEADER, ""),
        )
    except ValueError as error:
        raise InvalidRequestError(f"x-weft-*: the priority of a prefill is not readable: {error}") from error
