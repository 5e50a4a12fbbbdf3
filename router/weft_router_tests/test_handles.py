"""KV handles: accepted whole or not at all, turned the right way round, dead before their blocks are."""

from array import array
from typing import Any

import pytest

from weft_router.engines.handles import MARGIN_S, KvHandle, accept, prefix_digest
from weft_router.engines.vllm_prefill import transfer_params

GIVEN: dict[str, Any] = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "remote_num_tokens": 4,
    "tp_size": 1,
}
IDS = array("I", [1, 2, 3, 4, 5])


def take(params: dict[str, Any], *, ids: "array[int] | None" = IDS, plain: bool = True) -> KvHandle | None:
    return accept(params, ids=ids, plain=plain, received=100.0, lease_s=30.0, ttl_s=120.0)


def test_a_returned_handle_lives_for_its_ttl_and_an_exported_one_for_its_lease() -> None:
    returned = take(GIVEN)
    exported = take({**GIVEN, "do_remote_prefill": True, "do_remote_decode": False})
    assert returned is not None
    assert exported is not None
    assert (returned.deadline, exported.deadline) == (220.0 - MARGIN_S, 130.0 - MARGIN_S)
    for handle in (returned, exported):
        assert (handle.params["do_remote_decode"], handle.params["do_remote_prefill"]) == (True, False)
        assert handle.digest == prefix_digest(array("I", [1, 2, 3, 4, 9]), 4)
    assert returned.live(214.9)
    assert not returned.live(215.0)


@pytest.mark.parametrize("key", sorted(key for key in GIVEN if key.startswith("remote_")))
@pytest.mark.parametrize("value", [None, "", []])
def test_an_incomplete_object_is_no_handle(key: str, value: object) -> None:
    assert take({**GIVEN, key: value}) is None
    read = transfer_params({**GIVEN, "do_remote_prefill": True, key: value}) is not None
    assert read == (key == "remote_num_tokens")


def test_without_ids_only_plain_text_is_safe_and_fewer_ids_than_tokens_are_not() -> None:
    assert take(GIVEN, ids=None) is not None
    assert take(GIVEN, ids=None, plain=False) is None
    assert take(GIVEN, ids=IDS, plain=False) is not None
    assert take({**GIVEN, "remote_num_tokens": 6}) is None


@pytest.mark.parametrize("params", [None, {}, [], {"do_remote_prefill": False}, {"do_remote_prefill": True}])
def test_half_an_object_never_reaches_a_decode_engine(params: object) -> None:
    assert transfer_params(params) is None
