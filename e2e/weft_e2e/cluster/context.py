"""Guards a user's clusters: nothing is done to one that was not named on purpose."""

import os

from weft_e2e.cluster import state
from weft_e2e.cluster.config import context_name
from weft_e2e.cluster.errors import Refused

VARIABLE = "KUBE_CONTEXT"


def require_named_context(context: str | None, *, named: str | None = None) -> str:
    """Return the context to use, or raise Refused.

    Allowed are the contexts of clusters made here, and the one the user named (`named`, else $KUBE_CONTEXT). The
    current context of a kubeconfig is never taken on its own: it is whatever was used last, perhaps production.
    """
    named = named or os.environ.get(VARIABLE) or None
    context = context or named
    if context is None:
        raise Refused(f"no Kubernetes context named: set {VARIABLE}, or start a local cluster with `weft cluster up`")
    if context in made_here() or context == named:
        return context
    raise Refused(
        f"context {context!r} was not named by you: set {VARIABLE}={context} to say that it may be used"
        + (f" ({VARIABLE} is {named!r})" if named else "")
    )


def made_here() -> frozenset[str]:
    """Return the contexts of the local clusters that exist."""
    return frozenset(context_name(name) for name in state.names())
