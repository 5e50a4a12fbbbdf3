"""Oracles: each ``check_*`` function passes silently or says what was expected and what was found."""

from weft_e2e.checks.failed import CheckFailed
from weft_e2e.checks.history import check_history_read, check_tokens_computed_once
from weft_e2e.checks.objects import check_nothing_left, check_pods_untouched, check_ready, check_unchanged
from weft_e2e.checks.plans import check_condition, check_left_alone, check_proposed, check_replanned
from weft_e2e.checks.sessions import check_answers, check_no_failures, check_no_silent_failures, check_session_served

__all__ = [
    "CheckFailed",
    "check_answers",
    "check_condition",
    "check_history_read",
    "check_left_alone",
    "check_no_failures",
    "check_no_silent_failures",
    "check_nothing_left",
    "check_pods_untouched",
    "check_proposed",
    "check_ready",
    "check_replanned",
    "check_session_served",
    "check_tokens_computed_once",
    "check_unchanged",
]
