"""The reasons of the conditions about what is measured: MetricsAvailable and SLOMet."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

METRICS_AVAILABLE: Mapping[str, Reason] = MappingProxyType(
    {
        "Fresh": Reason("Every ready pod of the service is seen, lately and over the whole window."),
        "NotConfigured": Reason(
            "No Prometheus is known, so nothing is observed; plans are for the workload of the spec.",
            "Give `spec.planning.prometheus.url`, or the chart's prometheus.url.",
            cause="Neither the service nor the chart names a Prometheus.",
        ),
        "NotYetObserved": Reason(
            "There is no plan yet, or the metrics were not read yet.", cause="The service or the operator is starting."
        ),
        "WaitingForMetrics": Reason(
            "No pod is ready, or pods became ready so lately that Prometheus need not have scraped them yet. Nothing "
            "shrinks meanwhile.",
            "Wait: after twice `spec.planning.prometheus.staleAfter` the reason is Fresh, TooFewSamples or, where "
            "pods are still not scraped, NoSeries or Partial.",
            cause="The service is starting, or pods were added.",
        ),
        "PrometheusUnreachable": Reason(
            "There is no answer from Prometheus, or one that it is in trouble.",
            "Check that it runs, the URL, its certificate, and network policies between the operator and it.",
            cause="It is down, its URL is wrong, or a network policy or certificate is in the way.",
        ),
        "PrometheusUnauthorized": Reason(
            "Prometheus asks for authentication or a tenant, or what holds them is not there or holds nothing.",
            "Put token, or username and password, and ca.crt where needed, into the Secret that "
            "`spec.planning.prometheus.authSecretRef` names, and a tenant into `headers`; for the operator's own "
            "server, set the chart's values under `prometheus`.",
            cause="`authSecretRef` is missing, its token expired, it names the wrong account, or no tenant is named.",
        ),
        "QueryFailed": Reason(
            "Something answers, and not as Prometheus does.",
            "Check the URL, and the path in front of /api/v1.",
            cause="A proxy or another program answers at this URL.",
        ),
        "NoSeries": Reason(
            "Prometheus has no series of the service, although its pods are ready for more than twice "
            "`spec.planning.prometheus.staleAfter`, or became ready again and again for ten times that.",
            "Let Prometheus scrape port 8080 of the pods and give their series the labels namespace, service, pod and "
            "component, as the chart's PodMonitors do.",
            cause="The pods are not scraped, or their series lack the labels; or the pods do not stay ready.",
        ),
        "Stale": Reason(
            "The newest samples are older than `spec.planning.prometheus.staleAfter`, or there is such a hole in them.",
            "Look at Prometheus' targets; a hole passes with the window. staleAfter must be some scrape intervals.",
            cause="Scrapes fail, or are rarer than staleAfter.",
        ),
        "Partial": Reason(
            "Not every ready pod is seen, or not every metric that replanning needs: the load would look too small.",
            "Passes by itself after a rollout; else look at Prometheus' targets and at rules that drop metrics.",
            cause="The scrape of a pod fails, or a relabelling rule drops metrics.",
        ),
        "NotANumber": Reason(
            "A figure is not a number, infinite or below 0.",
            "Look at the rules that change weft_router metrics.",
            cause="A recording or relabelling rule divides by zero.",
        ),
        "TooFewSamples": Reason(
            "Prometheus collects metrics, and does not have enough of them yet.",
            "Wait for the length of the window (`spec.planning.prometheus.window`).",
            cause="The service, or Prometheus, began less than a window ago.",
        ),
        "ClockSkew": Reason(
            "The clocks of Prometheus and the operator differ by more than staleAfter.",
            "Synchronise the clocks of the nodes.",
            cause="A node's clock is not synchronised.",
        ),
    }
)

SLO_MET: Mapping[str, Reason] = MappingProxyType(
    {
        "Met": Reason(
            "In every class with at least 20 rounds (or ended sessions) the share that met the SLO is enough."
        ),
        "Missed": Reason(
            "In a class too few rounds (or sessions) met the SLO.",
            "See `status.observed.slo`: which class, and whether TTFT or ITL; give more GPUs, or a wider SLO.",
            cause="More or longer requests than planned, slow GPUs, or a profile that is too fast.",
        ),
        "TooFewRounds": Reason(
            "Fewer than 20 streamed rounds in the window: a share would say nothing.",
            cause="There is little traffic, or clients do not stream.",
        ),
        "Unknown": Reason(
            "Nothing is seen of the service.",
            "See the condition MetricsAvailable.",
            cause="Nothing is measured, or nothing serves yet.",
        ),
    }
)
