"""Read what a vLLM engine has pulled of others' KV, from its own counters, and what carried it, from the kernel's.

The engine counts bytes and time of each transfer, and does not say what carried it. The kernel does: what came over TCP
is in the counters of the pod's network devices, what came over RDMA in those of its RDMA devices, and neither sees
shared memory or links between GPUs.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_TOTAL = re.compile(
    rb"^vllm:(nixl_bytes_transferred_sum|nixl_xfer_time_seconds_sum|nixl_xfer_time_seconds_count"
    rb"|nixl_num_failed_transfers_total|prompt_tokens_by_source_total)\{([^}]*)\} ([0-9.eE+-]+)",
    re.MULTILINE,
)
_PULLED = b'source="external_kv_transfer"'
_NET_DEV = "proc/net/dev"
_RDMA = "sys/class/infiniband/*/ports/*"
_RDMA_BYTES = (
    ("counters/port_rcv_data", 4),
    ("hw_counters/rdma_read_bytes", 1),
    ("hw_counters/rdma_write_recv_bytes", 1),
)
"""InfiniBand and RoCE count words of four bytes; AWS' EFA counts bytes of reads and of writes."""

_OPEN, _SYN_SENT = "01", "02"

Transport = Literal["tcp", "rdma", "direct"]
"""``direct``: neither network nor RDMA devices of the pod saw it, as with shared memory and links between GPUs."""


@dataclass(frozen=True, slots=True)
class PulledKv:
    """What an engine has read since its start: bytes, seconds, transfers, how many failed, and the tokens they were."""

    size: float = 0.0
    seconds: float = 0.0
    transfers: float = 0.0
    failed: float = 0.0
    tokens: float = 0.0

    def since(self, before: "PulledKv") -> "PulledKv":
        """Return what was read since then; negative where the engine restarted."""
        return PulledKv(
            self.size - before.size,
            self.seconds - before.seconds,
            self.transfers - before.transfers,
            self.failed - before.failed,
            self.tokens - before.tokens,
        )


def read_pulled_kv(page: bytes) -> PulledKv:
    """Read a page of vLLM's metrics; the engine processes of one server are summed."""
    found: dict[bytes, float] = {}
    for name, labels, value in _TOTAL.findall(page):
        if name != b"prompt_tokens_by_source_total" or _PULLED in labels:
            found[name] = found.get(name, 0.0) + float(value)
    return PulledKv(
        found.get(b"nixl_bytes_transferred_sum", 0.0),
        found.get(b"nixl_xfer_time_seconds_sum", 0.0),
        found.get(b"nixl_xfer_time_seconds_count", 0.0),
        found.get(b"nixl_num_failed_transfers_total", 0.0),
        found.get(b"prompt_tokens_by_source_total", 0.0),
    )


@dataclass(frozen=True, slots=True)
class ReceivedBytes:
    """Bytes that the kernel has received for this pod, over its network devices and over RDMA."""

    network: int
    rdma: int

    def carrier(self, since: "ReceivedBytes", size: float) -> Transport:
        """Return what carried ``size`` bytes since then: whose counter grew by half of it at least."""
        if self.rdma - since.rdma >= size / 2:
            return "rdma"
        return "tcp" if self.network - since.network >= size / 2 else "direct"


def received_bytes(*, loopback: bool, root: Path = Path("/")) -> ReceivedBytes:
    """Read the kernel's counters of this network namespace; ``loopback``: of that device alone, else of all others."""
    network = 0
    for line in _text(root / _NET_DEV).splitlines()[2:]:
        name, _, counts = line.partition(":")
        if (name.strip() == "lo") is loopback:
            network += int(counts.split()[0])
    rdma = 0
    for port in root.glob(_RDMA):
        for path, unit in _RDMA_BYTES:
            text = _text(port / path).strip()
            rdma += int(text) * unit if text.isdigit() else 0
    return ReceivedBytes(network, rdma)


def unanswered_ports(host: str, *, root: Path = Path("/")) -> frozenset[int]:
    """Return the ports of a host's address where what this pod sends is not answered: a firewall drops it.

    These are connections that are not accepted, and open ones on which the same bytes went out twice and more.
    """
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return frozenset()
    size = 8 if wanted.version == 4 else 32
    ports = set()
    for name in ("proc/net/tcp", "proc/net/tcp6"):
        for line in _text(root / name).splitlines()[1:]:
            _, _, remote, state, _, _, again, *_ = line.split()
            address, _, port = remote.partition(":")
            silent = state == _SYN_SENT or (state == _OPEN and int(again, 16) > 1)
            if silent and _address(address[-size:] if _mapped(address) else address) == wanted:
                ports.add(int(port, 16))
    return frozenset(ports)


def _mapped(address: str) -> bool:
    """Return whether an address of IPv6 as the kernel writes it stands for one of IPv4."""
    return address.startswith("0000000000000000FFFF0000")


def _address(written: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Read an address as the kernel writes it: words of four bytes, each with its least byte first."""
    words = (bytes.fromhex(written[at : at + 8])[::-1] for at in range(0, len(written), 8))
    return ipaddress.ip_address(b"".join(words))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # no such device, or a sandbox that shows none
        return ""
