"""Addresses that nobody is sent to by a URL, in every form; those of the cluster's networks may be asked."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.addresses import refused_address

REFUSED = (
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:7::169.254.169.254",
    "2002:a9fe:a9fe::1",
    "localhost",
    "",
    "2130706433",
)


@pytest.mark.parametrize("address", REFUSED)
def test_nobody_is_sent_there(address: str) -> None:
    assert refused_address(address)


@pytest.mark.parametrize("address", ["10.0.0.7", "172.20.0.1", "192.168.1.1", "100.64.0.1", "fd00::7", "1.1.1.1"])
def test_networks_of_the_cluster_and_the_internet_may_be_asked(address: str) -> None:
    assert refused_address(address) is None


def test_further_addresses_can_be_denied() -> None:
    assert refused_address("10.96.0.1", {"10.96.0.1"}) == "is the API server's address"
    for form in ("::ffff:10.96.0.1", "::10.96.0.1", "64:ff9b::10.96.0.1", "64:ff9b:1::10.96.0.1", "2002:a60:1::7"):
        assert refused_address(form, {"10.96.0.1"}) == "is the API server's address"
        assert refused_address("10.96.0.1", {form}) == "is the API server's address"
    assert refused_address("10.96.0.2", {"10.96.0.1", ""}) is None


@given(st.integers(2, 2**32 - 1))
def test_an_address_is_judged_the_same_in_whatever_form_it_comes(number: int) -> None:
    plain = refused_address(str(IPv4Address(number)))
    forms = [number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x64FF9B0001 << 80 | number]
    forms.append(0x2002 << 112 | number << 80)
    assert {refused_address(str(IPv6Address(form))) for form in forms} == {plain}
