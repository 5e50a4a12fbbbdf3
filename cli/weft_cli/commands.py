"""The commands of ``weft`` with their one-line help, so that ``weft --help`` imports none of them.

A test holds these lines against each command's own help.
"""

SECTIONS: dict[str, dict[str, str]] = {
    "Plan": {
        "plan": "Plan a service's workers from its manifest, and say why.",
        "profile": "Measure or import the cost profile of a model on a GPU.",
        "workload": "Fit a workload to recorded sessions.",
        "simulate": "Simulate one layout and policy at given rates.",
        "ppd": "Learn the table of routing policy ppd.",
        "compare": "Compare routing policies on the same sessions.",
        "explain": "Explain a stored plan, or a reason of a condition: what it means, why it is there, what helps.",
    },
    "Operate": {
        "status": "Show a service's conditions, plan, workers, observed traffic, and a plan that waits for approval.",
        "sessions": "Show how many sessions each worker has, and what losing it would cost.",
        "top": "Show the current load of every pod: requests, queue, sessions, rounds and tokens a second, TTFT, ITL.",
        "logs": "Print the logs of a service's pods, merged by time.",
        "rollout": "Show and control the rollout of a service's plans.",
        "drain": "Drain one worker; another worker replaces it.",
        "support-bundle": "Write diagnostic data of a service into one file, without secrets, prompts and tokens.",
        "approve": "Approve the proposed plan of a service in mode Manual, after showing what it changes.",
    },
    "Run (in the images)": {
        "operator": "Run the operator: plan and deploy DisaggInferenceServices.",
        "router": "Run the coordinator, an endpoint picker, the sidecar of a worker, all in one process, or a gateway.",
        "mock-engine": "Serve an engine's API and P/D protocol from a cost profile, without a GPU.",
    },
    "Try": {
        "local": "Plan a service and run it as processes of this machine, without Kubernetes.",
        "cluster": "A real Kubernetes on this machine, with simulated GPUs.",
        "demo": "A planned service on a real cluster, recorded agent sessions replayed through it, and a report.",
    },
    "This program": {"completion": "Print the completion script of a shell."},
}
"""Section of the help, then command, then its help line."""

EXTRAS: dict[str, str] = {
    **dict.fromkeys((*SECTIONS["Plan"], "local"), "planner"),
    **dict.fromkeys((*SECTIONS["Operate"], "operator"), "operator"),
    "router": "router",
    "mock-engine": "mock",
    "cluster": "e2e",
    "demo": "e2e",
}
"""Command, then the extra of the wheel that brings what it needs."""


def known_help() -> dict[str, str]:
    """Return the help line of every command that Weft's own parts bring."""
    return {name: text for commands in SECTIONS.values() for name, text in commands.items()}
