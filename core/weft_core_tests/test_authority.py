from urllib.parse import urlsplit

import pytest

from weft_core.authority import authority, bracketed, http_url, is_http_url, listen_host, split_authority


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("10.0.0.7", "10.0.0.7:8101"),
        ("fd00::1", "[fd00::1]:8101"),
        ("::1", "[::1]:8101"),
        ("::ffff:10.0.0.7", "[::ffff:10.0.0.7]:8101"),
        ("demo-p0.demo.svc", "demo-p0.demo.svc:8101"),
    ],
)
def test_hosts_are_written_as_urls_have_them_and_read_back(host: str, written: str) -> None:
    assert authority(host, 8101) == written
    assert split_authority(written) == (host, 8101)
    parts = urlsplit(http_url(host, 8101))
    assert (parts.scheme, parts.hostname, parts.port) == ("http", host, 8101)


def test_only_addresses_of_ipv6_get_brackets() -> None:
    assert [bracketed(host) for host in ("fd00::1", "10.0.0.7", "localhost")] == ["[fd00::1]", "10.0.0.7", "localhost"]


@pytest.mark.parametrize(
    "text",
    ["", "8080", ":8080", "host", "host:", "host:port", "host:65536", "host:-1", "host:8 0", "host:²",
     "fd00::1:8080", "[fd00::1]", "[fd00::1]8080", "[host]:8080", "[]:80", "[fd00::1:80", "fd00::1]:80",
     "http://host:80", "user@host:80", "ho st:80", "ho\nst:80", "[::1%a]b]:80", "[::1%a/b]:80"],
)  # fmt: skip
def test_what_is_no_host_and_port_is_refused_with_both_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.7:8080 or \[fd00::7\]:8080"):
        split_authority(text)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("http://[fd00::1]:8101", True), ("http://[fd00::1]", True), ("https://host/path", True),
        ("http://10.0.0.7:1", True), ("http://fd00::1:8101", False), ("http://fd00::1", False),
        ("http://[fd00::1", False),
        ("http://host:port", False), ("http://host:65536", False), ("http://:80", False), ("10.0.0.7:80", False),
        ("ftp://host", False), ("", False), ("http://ho st/", False), ("http://host/\n", False),
    ],
)  # fmt: skip
def test_urls_without_brackets_around_an_address_of_ipv6_are_told(text: str, valid: bool) -> None:
    assert is_http_url(text) is valid


def test_every_address_of_both_families_is_asked_of_asyncio_without_a_host() -> None:
    assert listen_host("::") is None
    assert [listen_host(host) for host in ("0.0.0.0", "::1", "10.0.0.7")] == ["0.0.0.0", "::1", "10.0.0.7"]
