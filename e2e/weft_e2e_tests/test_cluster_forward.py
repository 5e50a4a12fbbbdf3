"""The forwarder, a program of its own: over real sockets on loopback, without a cluster."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weft_e2e.cluster import toolchain

pytestmark = pytest.mark.component

Address = tuple[str, int]


@pytest.fixture(scope="module")
def program() -> Path:
    toolchain.build_all(lambda _: None, frozenset({"forward"}))
    return toolchain.tool_path("forward")


@contextmanager
def forwarding(program: Path, target: Address) -> Iterator[tuple[Address, "subprocess.Popen[bytes]"]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        number = listener.fileno()
        process = subprocess.Popen(
            [str(program), str(number), target[0], str(target[1]), "-"], stdin=subprocess.PIPE, pass_fds=(number,)
        )
    with process:
        try:
            yield address, process
        finally:
            process.kill()


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_bytes_arrive_whole_in_both_directions_and_ends_are_passed_on(
    program: Path, host: str, family: socket.AddressFamily
) -> None:
    sent = bytes(range(256)) * 40_000  # 10 MB: many times every buffer on the way
    with socket.create_server((host, 0), family=family) as server:

        def answer_reversed() -> None:
            connection, _ = server.accept()
            with connection:
                received = _all(connection)
                connection.sendall(received[::-1])

        thread = threading.Thread(target=answer_reversed)
        thread.start()
        with (
            forwarding(program, server.getsockname()[:2]) as (address, _),
            socket.create_connection(address, 10) as client,
        ):
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)  # the server answers only after it has seen this end
            assert _all(client) == sent[::-1]
        thread.join(10)
        assert not thread.is_alive()


def test_many_connections_at_once_keep_their_own_bytes(program: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        forwarding(program, server.getsockname()) as (address, _),
    ):
        clients = [socket.create_connection(address, 10) for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(b"%04d" % number)
        for _ in clients:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(10)
                connection.sendall(connection.recv(4) * 2)
        for number, client in enumerate(clients):
            with client:
                assert _all(client) == b"%04d" % number * 2


def _all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_target_that_refuses_is_seen_by_the_client(program: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    # A reset, not an empty answer: that would look like a service with nothing to say.
    with (
        forwarding(program, nobody) as (address, _),
        socket.create_connection(address, 10) as client,
        pytest.raises(ConnectionError),
    ):
        client.recv(1)


def test_it_ends_with_its_owner(program: Path) -> None:
    with forwarding(program, ("127.0.0.1", 9)) as (_, process):
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_wrong_address_is_named(program: Path) -> None:
    done = subprocess.run([str(program), "3", "localhost", "80"], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2
    assert "IPv4 or IPv6 address, got localhost" in done.stderr
