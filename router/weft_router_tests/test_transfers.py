"""What engines and the kernel count of KV that was read: by whom, how much, and what carried it."""

from dataclasses import replace
from pathlib import Path

import pytest

from weft_router.engines.transfers import PulledKv, ReceivedBytes, read_pulled_kv, received_bytes, unanswered_ports

PAGE = b"""# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="m"} 2.0
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="m"} 0.05
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 8.388608e+06
vllm:nixl_num_failed_transfers_total{engine="0",model_name="m"} 1.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 2012.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 2000.0
vllm:nixl_xfer_time_seconds_sum{engine="1",model_name="m"} 0.01
"""
DEVICES = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: {lo} 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
  eth0:{eth} 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
  net1: 100 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0
"""


def test_a_page_of_vllm_tells_bytes_time_and_tokens_of_all_its_engines() -> None:
    assert replace(read_pulled_kv(PAGE), seconds=0.0) == PulledKv(8388608.0, 0.0, 2.0, 1.0, 2000.0)
    assert read_pulled_kv(PAGE).seconds == pytest.approx(0.06)
    assert read_pulled_kv(b"") == PulledKv()
    assert read_pulled_kv(PAGE).since(PulledKv(8388608.0, 0.05, 1.0, 1.0, 1000.0)).tokens == 1000.0


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def devices(root: Path, *, lo: int = 0, eth: int = 0) -> None:
    put(root, "proc/net/dev", DEVICES.format(lo=lo, eth=eth))


def test_what_carried_it_is_whose_counter_grew(tmp_path: Path) -> None:
    devices(tmp_path)
    before = received_bytes(loopback=False, root=tmp_path)
    devices(tmp_path, lo=5000, eth=1000)
    assert received_bytes(loopback=False, root=tmp_path).carrier(before, 1000) == "tcp"
    assert received_bytes(loopback=False, root=tmp_path).carrier(before, 5000) == "direct", (
        "loopback is no way between pods"
    )
    assert received_bytes(loopback=True, root=tmp_path).carrier(ReceivedBytes(0, 0), 5000) == "tcp"


@pytest.mark.parametrize(
    ("counter", "grown"),
    [
        ("mlx5_0/ports/1/counters/port_rcv_data", 250),
        ("rdmap0s6/ports/1/hw_counters/rdma_read_bytes", 1000),
    ],
    ids=["infiniband", "efa"],
)
def test_rdma_is_told_by_its_devices_counters(tmp_path: Path, counter: str, grown: int) -> None:
    devices(tmp_path)
    put(tmp_path, f"sys/class/infiniband/{counter}", "7\n")
    before = received_bytes(loopback=False, root=tmp_path)
    devices(tmp_path, eth=1000)
    put(tmp_path, f"sys/class/infiniband/{counter}", f"{7 + grown}\n")
    assert received_bytes(loopback=False, root=tmp_path).carrier(before, 1000) == "rdma"


def test_a_sandbox_that_shows_no_counters_tells_nothing_of_a_network(tmp_path: Path) -> None:
    assert received_bytes(loopback=False, root=tmp_path) == ReceivedBytes(0, 0)
    assert unanswered_ports("10.0.0.9", root=tmp_path) == frozenset()


def test_ports_that_a_firewall_keeps_silent_are_named(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue\n"
    lines = (
        "   0: 0100007F:BAB7 0900000A:9521 02 00000001:00000000 01:00000100 00000001 0 0 7",
        "   1: 0100007F:BAB8 0900000A:15E0 01 00000000:00000000 00:00000000 00000000 0 0 8",
        "   2: 0100007F:BAB9 0800000A:9522 02 00000001:00000000 01:00000100 00000001 0 0 9",
        "   3: 0100007F:BABA 0900000A:9523 01 00000040:00000000 01:00000100 00000004 0 0 9",
    )
    put(tmp_path, "proc/net/tcp", head + "\n".join(lines) + "\n")
    six = (
        "   0: 00000000000000000000000000000000:BAB7 0000000000000000FFFF00000900000A:9600 02 1:0 1:1 0 0",
        "   1: 00000000000000000000000000000000:BAB7 B80D0120000000000000000009000000:9700 02 1:0 1:1 0 0",
    )
    put(tmp_path, "proc/net/tcp6", head + "\n".join(six) + "\n")
    assert unanswered_ports("10.0.0.9", root=tmp_path) == {0x9521, 0x9523, 0x9600}
    assert unanswered_ports("2001:db8::9", root=tmp_path) == {0x9700}
    assert unanswered_ports("2001:db8::8", root=tmp_path) == frozenset()
    assert unanswered_ports("no-address", root=tmp_path) == frozenset()
