"""Queue orders, one file each: which queued prefill runs next."""

from collections.abc import Mapping

from weft_core.policies.policy import QueueOrder, policies_in

POLICIES: Mapping[str, QueueOrder] = policies_in(__name__, __path__)
