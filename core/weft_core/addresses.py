"""Which addresses a program may be sent to by somebody who only writes a URL: pure.

A service's author chooses URLs that the operator and routers ask from where they run. Addresses of the cluster's own
networks, nodes' too, are among what may be asked: network policies bound which. Loopback and link-local addresses, a
cloud's metadata and what the caller denies are not.
"""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_METADATA = frozenset(
    {
        ip_address("100.100.100.200"),  # Alibaba Cloud
        ip_address("168.63.129.16"),  # Azure's host agent
        ip_address("192.0.0.192"),  # Oracle Cloud, classic
        ip_address("fd00:ec2::23"),  # AWS: credentials of containers
        ip_address("fd00:ec2::254"),  # AWS
        ip_address("fd20:ce::254"),  # Google Cloud
        ip_address("fd00:c1::a9fe:a9fe"),  # Oracle Cloud
        ip_address("fd00:42::42"),  # Scaleway
    }
)
"""Servers of credentials and of a node's user data outside of the link-local ranges, where most of them are."""

_THIS_NETWORK = ip_network("0.0.0.0/8")
_NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
"""Translated by the last 32 bits; of the second, networks' own, that is so with prefixes of 96 bits."""
_COMPATIBLE = ip_network("::/96")


def refused_address(text: str, denied: Collection[str] = ()) -> str | None:
    """Return why an address may not be asked, None where it may.

    ``denied`` are further addresses that may not. An address of IPv6 that stands for one of IPv4 is judged as that one.
    """
    try:
        address = _plain(ip_address(text.partition("%")[0]))
    except ValueError:
        return "is no address"
    if address.is_loopback:
        return "is a loopback address"
    if address.is_unspecified or (address.version == 4 and address in _THIS_NETWORK):
        return "is an unspecified address"
    if address.is_link_local:
        return "is a link-local address"
    if address.is_multicast or (address.version == 4 and address.is_reserved):
        return "is no address of one host"
    if address in _METADATA:
        return "is a metadata server's address"
    if any(address == _plain(ip_address(item)) for item in denied if item):
        return "is the API server's address"
    return None


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the address of IPv4 that one of IPv6 stands for; others as they are."""
    if isinstance(address, IPv4Address):
        return address
    embedded = address.ipv4_mapped or address.sixtofour
    if embedded is not None:
        return embedded
    if any(address in network for network in _NAT64) or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
