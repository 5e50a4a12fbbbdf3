"""How a service gets from the workers it has to those of its plan: inside the budget, and back where it cannot.

Pure. Groups as they are and the target come in, what to ask of each group now goes out; nothing is stored but the
plan to go back to and the plans that were given up.
"""

from weft_operator.transition.advance import Outcome, Step, advance
from weft_operator.transition.groups import Group, GroupState, GroupTarget, Limits
from weft_operator.transition.ledger import Ledger, Refusal, Trial, TrialState, ledger_json, read_ledger, target_hash
from weft_operator.transition.trial import Canary, Share, fresh_groups

__all__ = [
    "Canary",
    "Group",
    "GroupState",
    "GroupTarget",
    "Ledger",
    "Limits",
    "Outcome",
    "Refusal",
    "Share",
    "Step",
    "Trial",
    "TrialState",
    "advance",
    "fresh_groups",
    "ledger_json",
    "read_ledger",
    "target_hash",
]
