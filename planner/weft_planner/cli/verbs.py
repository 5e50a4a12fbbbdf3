"""The verbs of ``weft`` with their one-line help, so that ``weft --help`` imports none of them.

A test holds these lines against each command's own help.
"""

SECTIONS: dict[str, dict[str, str]] = {
    "Plan": {
        "plan": "Plan a service's workers from its manifest, and say why.",
        "profile": "Measure or import the cost profile of a model on a GPU.",
        "workload": "Fit a workload to recorded sessions.",
        "simulate": "Simulate one layout and policy at given rates.",
        "compare": "Compare routing policies on the same sessions.",
        "explain": "Explain a stored plan: what binds it, what was close, what it assumes.",
    },
    "Run (in the images)": {
        "operator": "Run the operator: plan and deploy DisaggInferenceServices.",
        "router": "Run the coordinator, the sidecar of a prefill or decode worker, or all of them in one process.",
        "mock-engine": "Serve an engine's API and P/D protocol from a cost profile, without a GPU.",
    },
    "Try": {
        "local": "Plan a service and run it as processes of this machine, without Kubernetes.",
        "cluster": "A real Kubernetes on this machine, with simulated GPUs.",
        "demo": "A planned service on a real cluster, recorded agent sessions replayed through it, and a report.",
    },
    "This program": {"completion": "Print the completion script of a shell."},
}
"""Section of the help, then verb, then its line."""


def known_help() -> dict[str, str]:
    """Return the help line of every verb that Weft's own parts bring."""
    return {name: text for verbs in SECTIONS.values() for name, text in verbs.items()}
