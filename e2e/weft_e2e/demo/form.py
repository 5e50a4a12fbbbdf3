"""Decide where the demo runs: on a cluster of the user's, on a local one, or, where none can be, without any."""

from typing import Literal, get_args

from weft_e2e.cluster import packages, preflight
from weft_e2e.demo.settings import Settings
from weft_e2e.demo.steps import DemoFailed, Say

Form = Literal["auto", "cluster", "embedded"]
FORMS = get_args(Form)


def choose_form(settings: Settings, asked: Form, say: Say) -> Literal["cluster", "embedded"]:
    """Choose the form, and say in one line why it is not a cluster.

    Raises:
        ClusterError: a cluster is asked for by name, and none can run here.
        DemoFailed: the options fit no form that is possible.
    """
    if settings.context is not None:
        if asked == "embedded":
            raise DemoFailed(f"--form embedded uses no cluster: leave out --context {settings.context}")
        packages.check_clients()
        return "cluster"
    if settings.simulate_gpus:
        raise DemoFailed("--simulate-gpus is for a cluster of your own: name it with --context (KUBE_CONTEXT)")
    reason = preflight.obstacle() if asked == "auto" else None
    if asked == "embedded" or reason is not None:
        if settings.helm_set:
            raise DemoFailed(f"--set is for a cluster, and there is none: {reason or '--form embedded uses none'}")
        if reason is not None:
            say(
                f"No cluster can run here: {' '.join(reason.split())}. The demo runs as processes of this machine "
                "instead (docs/local.md); `make demo-cluster` insists on a cluster."
            )
        return "embedded"
    preflight.check_setup()
    return "cluster"
