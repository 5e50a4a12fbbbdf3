from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfileError, TransferCost
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_core.transfers import transfer_between

LLAMA = MODELS["meta-llama/Llama-3.1-70B-Instruct"]
H20 = derive_profile(LLAMA, GPUS["nvidia-h20"], degrees=(2, 4, 8))
H100 = derive_profile(LLAMA, GPUS["nvidia-h100"], degrees=(4, 8))

degrees = st.sampled_from([2, 4, 8])


@given(degrees, degrees)
def test_within_one_profile_it_is_the_profile_itself(source: int, destination: int) -> None:
    cost = transfer_between(H20, H20, source_degree=source, destination_degree=destination, link="inter-node")
    assert cost == H20.transfers[source, destination, "inter-node"]


@given(degrees, st.sampled_from([4, 8]))
def test_the_slower_end_sets_the_pace_both_ways(source: int, destination: int) -> None:
    there = transfer_between(H20, H100, source_degree=source, destination_degree=destination, link="inter-node")
    back = transfer_between(H100, H20, source_degree=destination, destination_degree=source, link="inter-node")
    assert there == back
    # H20 servers have half the network per GPU; links go with the fewer GPUs.
    assert there.per_token == pytest.approx(327680 / (min(source, destination) * 25e9 * 0.7), rel=1e-6)


def test_a_degree_that_neither_knows_together_is_scaled_by_links() -> None:
    only = {pair: cost for pair, cost in H100.transfers.items() if pair[:2] == (8, 8)}
    cost = transfer_between(
        H20, replace(H100, transfers=only), source_degree=2, destination_degree=8, link="intra-node"
    )
    assert cost.per_token == pytest.approx(327680 / (2 * 150e9 * 0.7), rel=1e-6)


def test_what_cannot_be_read_is_refused() -> None:
    def between(other: object) -> TransferCost:
        return transfer_between(H20, other, source_degree=4, destination_degree=4, link="inter-node")  # type: ignore[arg-type]

    with pytest.raises(CostProfileError, match=r"KV of .* is of no use to other"):
        between(replace(H100, model="other"))
    with pytest.raises(CostProfileError, match=r"kvBytesPerToken: .* use one KV data type"):
        between(replace(H100, kv_bytes_per_token=163840))
    nothing = {pair: cost for pair, cost in H100.transfers.items() if pair[2] == "intra-node"}
    with pytest.raises(CostProfileError, match="nvidia-h100 has no inter-node transfer at all"):
        between(replace(H100, transfers=nothing))
