"""Explain conditions and reasons: for ``weft explain``, and as the runbook in docs/reference/runbook.md."""

import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from weft_operator.status.reasons.catalogue import CONDITIONS, GROUP_MEANING, GROUP_REASONS, MEANING, REASONS
from weft_operator.status.reasons.reason import Reason

FIRST_COMMANDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Planned": ("weft status NAME", "weft rollout history NAME", "weft plan -f FILE --diff live"),
        "Ready": ("weft status NAME", "weft sessions NAME", "weft logs NAME --container all --tail 50"),
        "Progressing": ("weft rollout status NAME", "kubectl describe dis NAME", "weft sessions NAME"),
        "Drained": ("weft sessions NAME", "kubectl get wg,pods -o wide -l weft.dev/service=NAME"),
        "SLOFeasible": ("weft status NAME", "weft plan -f FILE --diff live"),
        "MetricsAvailable": ("weft status NAME", "kubectl get dis NAME -o jsonpath='{.status.observed}'"),
        "SLOMet": ("weft status NAME", "weft top NAME", "weft rollout history NAME"),
        "CostModelFresh": ("weft status NAME", "weft top NAME", "kubectl describe costprofile PROFILE"),
        "ProfileMeasured": ("weft status NAME", "kubectl get jobs,pods -l app.kubernetes.io/component=profile"),
        "ModelReady": (
            "weft status NAME",
            "kubectl get jobs,pods,pvc -l weft.dev/service=NAME,app.kubernetes.io/component=weights",
            "weft logs NAME --container weights --tail 50",
        ),
        "EnginePlugin": ("weft status NAME", "weft logs NAME --container all --tail 50"),
        "KVTransportVerified": (
            "weft status NAME",
            "weft logs NAME --container all --tail 50",
            "kubectl get networkpolicies,pods -o wide -l weft.dev/service=NAME",
        ),
        "AdaptersLoaded": ("weft status NAME", "weft logs NAME --container all --tail 50"),
        "KVCacheTiers": (
            "weft status NAME",
            "kubectl describe pods,pvc -l weft.dev/service=NAME",
            "kubectl logs -l weft.dev/service=NAME -c kv-disk --tail 50",
        ),
        "Reconciling": ("weft rollout status NAME",),
        "Stalled": ("weft status NAME",),
    }
)
"""Commands to run first, by condition; NAME is the service's."""

GROUP_COMMANDS = ("weft sessions NAME", "kubectl describe wg GROUP", "kubectl get pods -l weft.dev/service=NAME")
"""The same for the conditions of WorkerGroups."""

GROUP = "WorkerGroup"
_MEANINGS: Mapping[str, str] = {
    **{str(name): text for name, text in MEANING.items()},
    **{f"{GROUP} {name}": text for name, text in GROUP_MEANING.items()},
}

WIDTH = 100


def explained(word: str) -> tuple[dict[str, Any], str] | None:
    """Return the explanation of a reason or condition as data and as text; of all for "".

    Case does not matter. None for an unknown word.
    """
    rows = [row for row in _rows() if word.lower() in ("", row["condition"].lower(), row["reason"].lower())]
    if not rows:
        return None
    if word and all(row["reason"].lower() == word.lower() for row in rows):
        text = "\n\n".join(_in_full(row) for row in rows)
    else:
        text = "\n".join(_listed(rows))
    return {"reasons": rows}, text


def runbook_page() -> str:
    """Return docs/reference/runbook.md."""
    lines = [
        "# Runbook",
        "",
        "Generated from the code by `make generate`: do not edit. What to do about each reason of each condition.",
        "`weft status NAME` shows which hold, and `weft explain REASON` prints the same as here. Whatever a condition",
        "says, workers that run stay as they are unless a reason below says otherwise.",
    ]
    for condition in CONDITIONS:
        lines += _chapter(condition, MEANING[condition], FIRST_COMMANDS[condition], REASONS[condition])
    for name, reasons in GROUP_REASONS.items():
        lines += _chapter(f"{GROUP} {name}", GROUP_MEANING[name], GROUP_COMMANDS, reasons)
    return "\n".join(lines) + "\n"


def _chapter(title: str, meaning: str, commands: tuple[str, ...], reasons: Mapping[str, Reason]) -> Iterator[str]:
    yield from ("", f"## {title}", "", meaning, "", "Look first:", "", "```sh", *commands, "```")
    for name, reason in reasons.items():
        if not (reason.remedy or reason.cause):
            continue
        yield from ("", f"### {title}: {name}", "", reason.meaning)
        if reason.cause:
            yield from ("", f"**Usually because** {_inside(reason.cause)}")
        yield from ("", f"**What helps:** {reason.remedy or 'nothing needs to be done.'}")


def remedy_of(condition: str, reason: str) -> str:
    """Return the remedy of a reason, "" where it needs none or is unknown."""
    found: Mapping[str, Reason] = REASONS.get(condition, {})  # type: ignore[call-overload]
    return found[reason].remedy if reason in found else ""


def _rows() -> Iterator[dict[str, str]]:
    of_services = ((condition, REASONS[condition]) for condition in CONDITIONS)
    of_groups = ((f"{GROUP} {name}", reasons) for name, reasons in GROUP_REASONS.items())
    for condition, reasons in (*of_services, *of_groups):
        for name, reason in reasons.items():
            yield {
                "condition": condition,
                "reason": name,
                "meaning": reason.meaning,
                "cause": reason.cause,
                "remedy": reason.remedy,
            }


def _in_full(row: Mapping[str, str]) -> str:
    parts = [f"{row['reason']}, a reason of the condition {row['condition']}", "", row["meaning"]]
    if row["cause"]:
        parts += ["", f"Usually because: {row['cause']}"]
    parts += ["", f"What helps: {row['remedy'] or 'nothing needs to be done.'}"]
    commands = FIRST_COMMANDS.get(row["condition"], GROUP_COMMANDS)
    parts += ["", "Look first:", *(f"  {command}" for command in commands)]
    return "\n".join(line for part in parts for line in (_wrapped(part) or [""]))


def _listed(rows: list[dict[str, str]]) -> Iterator[str]:
    width = max(len(row["reason"]) for row in rows)
    last = ""
    for row in rows:
        if row["condition"] != last:
            last = row["condition"]
            yield from (*([""] if row is not rows[0] else []), f"{last}: {_MEANINGS[last]}")
        head = f"  {row['reason']:{width}}  "
        yield textwrap.fill(row["meaning"], WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _wrapped(text: str) -> list[str]:
    return [text] if text.startswith("  ") else textwrap.wrap(text, WIDTH)


def _inside(text: str) -> str:
    """Return a sentence for use within another one: in lower case first, unless it starts with a name."""
    return text if text[:2].isupper() or text.startswith(("`", "Prometheus")) else text[0].lower() + text[1:]
