import pytest

from weft_mock.blocks import Block, BlockPool
from weft_mock.pins import Holder, PinTable, ReadRefusedError


def table() -> tuple[BlockPool, PinTable]:
    pool = BlockPool(10, block_size=4)
    return pool, PinTable(pool, lease_seconds=30, ttl_seconds=120)


def pin(pool: BlockPool, pins: PinTable, *, holder: Holder = "prefill", name: str = "r") -> list[int]:
    blocks: list[Block] = pool.allocate(2)
    pins.add(name, holder=holder, blocks=blocks, ids=range(7), now=100.0)
    return [block.index for block in blocks]


def refusal(pins: PinTable, name: str, block_ids: list[int], now: float) -> str:
    with pytest.raises(ReadRefusedError) as caught:
        pins.read(name, block_ids=block_ids, now=now)
    return caught.value.reason


def test_a_pin_is_read_once_and_freed_when_the_reader_is_done() -> None:
    pool, pins = table()
    ids = pin(pool, pins)
    assert pins.read("r", block_ids=ids, now=101).blocks[0].index == ids[0]
    assert refusal(pins, "r", ids, 102) == "replayed"
    assert pool.free == 8
    assert pins.release("r") is not None
    assert pool.free == 10
    assert refusal(pins, "r", ids, 103) == "replayed"
    assert pins.release("r") is None


def test_wrong_blocks_are_refused_and_the_pin_stays() -> None:
    pool, pins = table()
    ids = pin(pool, pins)
    for wrong in ([], ids[:1], ids[::-1], [ids[0], 9]):
        assert refusal(pins, "r", wrong, 101) == "wrong_blocks"
    pins.read("r", block_ids=ids, now=101)


def test_unknown_and_expired_requests_are_told_apart() -> None:
    pool, pins = table()
    ids = pin(pool, pins)
    assert refusal(pins, "other", ids, 101) == "unknown_request"
    assert refusal(pins, "r", ids, 131) == "expired"
    assert refusal(pins, "r", ids, 131) == "expired"
    assert pool.free == 10


def test_leases_and_times_to_live_end() -> None:
    pool, pins = table()
    pin(pool, pins, name="lease")
    pin(pool, pins, holder="decode", name="kept")
    assert pins.expire(129) == []
    assert [p.request_id for p in pins.expire(130)] == ["lease"]
    assert pins.leased is False
    assert [p.request_id for p in pins.expire(220)] == ["kept"]
    assert pool.free == 10
    assert len(pins) == 0


def test_a_heartbeat_extends_a_lease_by_two_thirds_from_now() -> None:
    pool, pins = table()
    pin(pool, pins)
    assert pins.renew("r", now=105)
    assert pins.get("r").deadline == 130
    assert pins.renew("r", now=120)
    assert pins.get("r").deadline == 140
    assert not pins.renew("other", now=120)


def test_a_heartbeat_does_not_keep_a_decoded_round_alive() -> None:
    pool, pins = table()
    pin(pool, pins, holder="decode")
    assert pins.renew("r", now=219)
    assert pins.get("r").deadline == 220


def test_a_read_just_before_the_end_may_finish() -> None:
    pool, pins = table()
    ids = pin(pool, pins)
    pins.read("r", block_ids=ids, now=129)
    assert pins.expire(131) == []
    assert [p.reading for p in pins.expire(160)] == [True]
