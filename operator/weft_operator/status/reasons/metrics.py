"""The reasons of the conditions about metrics: MetricsAvailable and SLOMet."""

from collections.abc import Mapping
from types import MappingProxyType

from weft_operator.status.reasons.reason import Reason

METRICS_AVAILABLE: Mapping[str, Reason] = MappingProxyType(
    {
        "Fresh": Reason("There are current metrics of every ready pod of the service, over the whole window."),
        "NotConfigured": Reason(
            "No Prometheus is configured, so there are no metrics; plans are for the workload of the spec.",
            "Give `spec.planning.prometheus.url`, or the chart's prometheus.url.",
            cause="Neither the service nor the chart names a Prometheus.",
        ),
        "NotYetObserved": Reason(
            "There is no plan yet, or metrics were not queried yet.", cause="The service or the operator is starting."
        ),
        "WaitingForMetrics": Reason(
            "No pod is ready, or pods became ready so recently that Prometheus may not have scraped them yet. No plan "
            "shrinks until then.",
            "Wait: after twice `spec.planning.prometheus.staleAfter` the reason is Fresh, TooFewSamples or, where "
            "pods are still not scraped, NoSeries or Partial.",
            cause="The service is starting, or pods were added.",
        ),
        "PrometheusUnreachable": Reason(
            "Prometheus does not answer, or answers with a server error.",
            "Check that it runs, the URL, its certificate, and network policies between the operator and it.",
            cause="It is down, its URL is wrong, or a network policy or certificate prevents the connection.",
        ),
        "PrometheusUnauthorized": Reason(
            "Prometheus requires authentication or a tenant, or the Secret or file for them is missing or empty.",
            "Put token, or username and password, and ca.crt where needed, into the Secret that "
            "`spec.planning.prometheus.authSecretRef` names, and a tenant into `headers`; for the operator's own "
            "server, set the chart's values under `prometheus`.",
            cause="`authSecretRef` is missing, its token expired, it names the wrong account, or no tenant is named.",
        ),
        "QueryFailed": Reason(
            "The server's answer is not one of Prometheus.",
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
            "The newest samples are older than `spec.planning.prometheus.staleAfter`, or there is such a gap.",
            "Check Prometheus' targets; a gap ends with the window. staleAfter must be several scrape intervals.",
            cause="Scrapes fail, or are rarer than staleAfter.",
        ),
        "Partial": Reason(
            "Metrics of a ready pod, or one that replanning needs, are missing: the load would look too small.",
            "After a rollout wait; otherwise check Prometheus' targets and rules that drop metrics.",
            cause="The scrape of a pod fails, or a relabelling rule drops metrics.",
        ),
        "NotANumber": Reason(
            "A metric is not a number, infinite or below 0.",
            "Check the rules that change weft_router metrics.",
            cause="A recording or relabelling rule divides by zero.",
        ),
        "TooFewSamples": Reason(
            "Prometheus does not have enough samples yet.",
            "Wait for the length of the window (`spec.planning.prometheus.window`).",
            cause="The service, or Prometheus, started less than a window ago.",
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
        "Met": Reason("In every class with at least 20 rounds (or ended sessions) enough of them met the SLO."),
        "Missed": Reason(
            "In a class too few rounds (or sessions) met the SLO.",
            "See `status.observed.slo`: which class, and whether TTFT or ITL; give more GPUs, or a wider SLO.",
            cause="More or longer requests than planned, slow GPUs, or a profile that is too fast.",
        ),
        "TooFewRounds": Reason(
            "Fewer than 20 rounds in the window: a share would not be meaningful.",
            cause="There is little traffic.",
        ),
        "Unknown": Reason(
            "There are no metrics of the service.",
            "See the condition MetricsAvailable.",
            cause="No Prometheus is configured, or nothing serves yet.",
        ),
    }
)
