"""Services that ``kubectl apply`` must refuse for what they say of weights, metrics, schedulers and devices."""

from weft_operator_tests.invalid_case import Case, one_change
from weft_operator_tests.invalid_rules import POOL
from weft_operator_tests.valid import changed, service

CLUSTER_CASES: tuple[Case, ...] = (
    one_change(
        "two-model-sources",
        "spec.model.source",
        {"huggingFace": {}, "pvc": {"claimName": "models"}},
        rule="spec.model.source: give exactly one of huggingFace, pvc, s3 and oci",
    ),
    one_change(
        "no-model-source",
        "spec.model.source",
        {},
        rule="spec.model.source: give exactly one of huggingFace, pvc, s3 and oci",
    ),
    one_change(
        "two-caches",
        "spec.model.source",
        {"huggingFace": {"cache": {"claim": {"size": "1Ti"}, "node": {"path": "/models"}}}},
        rule="spec.model.source: give exactly one of cache.claim and cache.node",
    ),
    one_change(
        "a-folder-of-nodes-by-way-of-another",
        "spec.model.source",
        {"huggingFace": {"cache": {"node": {"path": "/models/../etc"}}}},
        rule="spec.model.source: cache.node.path holds .., which kubelets refuse; write the folder's own path",
    ),
    one_change(
        "a-claim-of-whom",
        "spec.model.source",
        {"huggingFace": {"cache": {"claim": {"size": "1Ti", "existingClaim": "models"}}}},
        rule="spec.model.source: give exactly one of cache.claim.existingClaim and cache.claim.size",
    ),
    one_change(
        "a-class-for-an-existing-claim",
        "spec.model.source",
        {"huggingFace": {"cache": {"claim": {"existingClaim": "models", "storageClassName": "nfs"}}}},
        rule="spec.model.source: cache.claim.storageClassName is of the claim that is made for the service; remove it, "
        "or replace existingClaim by size",
    ),
    one_change(
        "a-mirror-without-a-cache",
        "spec.model.source",
        {"huggingFace": {"endpoint": "https://hub.example.com"}},
        rule="spec.model.source.huggingFace: endpoint, include and exclude are for a download into a cache; set cache "
        "or remove them",
    ),
    one_change(
        "prometheus-with-a-password",
        "spec.planning.prometheus",
        {"url": "http://me:word@prometheus:9090"},
        rule="spec.planning.prometheus.url: must hold no user name or password; put them into a Secret and name it in "
        "authSecretRef",
    ),
    one_change(
        "token-in-the-clear",
        "spec.model.source",
        {
            "huggingFace": {
                "endpoint": "http://hub.example.com",
                "tokenSecretRef": {"name": "hub", "key": "token"},
                "cache": {"claim": {"size": "1Ti"}},
            }
        },
        rule="spec.model.source.huggingFace.endpoint: the token is sent by https:// only, or to a Service of the "
        "cluster; use https://, or write http://NAME.NAMESPACE.svc:8080",
    ),
    *(
        one_change(
            f"prometheus-secret-in-the-clear-{number}",
            "spec.planning.prometheus",
            {"url": url, "authSecretRef": {"name": "prom"}},
            rule="spec.planning.prometheus.url: what a Secret holds is sent by https:// only, or to a Service of the "
            "cluster; use https://, or write http://NAME.NAMESPACE.svc:9090",
        )
        for number, url in enumerate(
            ("http://attacker.example.com", "http://a.b.svc.example.com", "http://prometheus:9090")
        )
    ),
    one_change(
        "prometheus-window-too-long",
        "spec.planning.prometheus",
        {"window": "7h"},
        rule="spec.planning.prometheus.window: must be between 20s and 6h",
    ),
    one_change(
        "prometheus-stale-beyond-the-window",
        "spec.planning.prometheus",
        {"window": "1m", "staleAfter": "31s"},
        rule="spec.planning.prometheus.staleAfter: must be between 5s and half of window",
    ),
    one_change(
        "prometheus-header-of-http",
        "spec.planning.prometheus",
        {"headers": [{"name": "authorization", "value": "Bearer x"}]},
        rule="spec.planning.prometheus.headers: names a header that clients or proxies set themselves; remove it, "
        "and put credentials into the Secret of authSecretRef",
    ),
    one_change(
        "prometheus-header-of-a-metadata-server",
        "spec.planning.prometheus",
        {"headers": [{"name": "Metadata-Flavor", "value": "Google"}]},
        rule="spec.planning.prometheus.headers: names a header that clients or proxies set themselves; remove it, "
        "and put credentials into the Secret of authSecretRef",
    ),
    one_change(
        "prometheus-header-of-an-authenticating-proxy",
        "spec.planning.prometheus",
        {"headers": [{"name": "X-Remote-User", "value": "admin"}]},
        rule="spec.planning.prometheus.headers: names a header that clients or proxies set themselves; remove it, "
        "and put credentials into the Secret of authSecretRef",
    ),
    one_change(
        "prometheus-header-without-a-value",
        "spec.planning.prometheus",
        {"headers": [{"name": "X-Scope-OrgID"}]},
        rule="spec.planning.prometheus.headers: give exactly one of value and secretKeyRef",
    ),
    one_change(
        "prometheus-header-of-two-lines",
        "spec.planning.prometheus",
        {"headers": [{"name": "X-Scope-OrgID", "value": "a\nX-Other: b"}]},
        words=("spec.planning.prometheus.headers[0].value", "should match"),
    ),
    one_change(
        "prometheus-header-twice",
        "spec.planning.prometheus",
        {"headers": [{"name": "X-Scope-OrgID", "value": "a"}, {"name": "X-Scope-OrgID", "value": "b"}]},
        words=("spec.planning.prometheus.headers[1]", "Duplicate value"),
    ),
    one_change(
        "prometheus-matcher-of-a-queried-label",
        "spec.planning.prometheus",
        {"matchers": [{"name": "phase", "value": "first"}]},
        rule="spec.planning.prometheus.matchers: names a label that the queries use themselves (__name__, class, "
        "component, figure, le, namespace, objective, outcome, phase, pod, process, reason, service); remove it",
    ),
    one_change(
        "prometheus-matcher-that-is-no-label",
        "spec.planning.prometheus",
        {"matchers": [{"name": "eu-west", "value": "1"}]},
        words=("spec.planning.prometheus.matchers[0].name", "should match"),
    ),
    one_change("pull-secret-that-is-no-name", "spec.imagePullSecrets", ["My_Secret"], words=("imagePullSecrets[0]",)),
    one_change("engine-as-root", "spec.engine.runAsUser", 0, words=("spec.engine.runAsUser", "equal to 1")),
    one_change(
        "prometheus-without-a-scheme",
        "spec.planning.prometheus",
        {"url": "prometheus:9090"},
        words=("spec.planning.prometheus.url",),
    ),
    one_change(
        "gang-without-queue",
        "spec.scheduling",
        {"gang": {"scheduler": "kueue"}},
        rule="spec.scheduling.gang.queue: is needed for kueue and kai; name a LocalQueue of Kueue or a Queue of KAI",
    ),
    one_change(
        "gang-with-a-queue-that-nothing-reads",
        "spec.scheduling",
        {"gang": {"scheduler": "coscheduling", "queue": "team-a"}},
        rule="spec.scheduling.gang.queue: coscheduling has no queues; remove it",
    ),
    one_change(
        "kueue-with-a-scheduler",
        "spec.scheduling",
        {"gang": {"scheduler": "kueue", "queue": "team-a", "schedulerName": "volcano"}},
        rule="spec.scheduling.gang.schedulerName: kueue leaves placing to the cluster's scheduler; remove it",
    ),
    one_change(
        "unknown-gang-scheduler",
        "spec.scheduling",
        {"gang": {"scheduler": "yunikorn"}},
        words=("spec.scheduling.gang.scheduler", "Unsupported value"),
    ),
    one_change(
        "topology-of-nothing",
        "spec.capacity.pools.0.topology",
        {"scope": "service"},
        rule="spec.capacity.pools.topology: names no node label; add required or preferred",
    ),
    one_change(
        "topology-of-no-label",
        "spec.capacity.pools.0.topology",
        {"required": "rack 1"},
        words=("spec.capacity.pools[0].topology.required", "should match"),
    ),
    one_change(
        "rack-of-half-nodes",
        "spec.capacity.pools",
        [{**POOL, "gpusPerNode": 8, "gpusPerRack": 12}],
        rule="spec.capacity.pools.gpusPerRack: a rack has whole nodes; choose a multiple of gpusPerNode",
    ),
    one_change(
        "worker-over-racks",
        "spec.capacity.pools",
        [{**POOL, "gpusPerNode": 4, "gpusPerRack": 16, "degrees": [8, 32]}],
        rule="spec.capacity.pools.gpusPerRack: a worker lies in one rack; choose degrees and parallelism of at most "
        "gpusPerRack GPUs",
    ),
    one_change(
        "topology-of-one-node",
        "spec.capacity.pools.0.topology",
        {"required": "kubernetes.io/hostname"},
        rule="spec.capacity.pools.topology.required: pods of one worker never share a node; name the label of a larger "
        "part of the network",
    ),
    Case(
        "workers-together-and-apart",
        changed(
            changed(service(), "spec.capacity.pools.0.topologyKey", "example.com/rack"),
            "spec.capacity.pools.0.topology",
            {"preferred": "example.com/rack", "scope": "service"},
        ),
        rule="spec.capacity.pools.topology: draws all workers to one part of topologyKey, over which they are spread; "
        "name another label in one of them",
    ),
    one_change(
        "worker-over-slices",
        "spec.capacity.pools",
        [{**POOL, "resource": "nvidia.com/mig-3g.40gb", "gpuType": "nvidia-h100-mig-3g.40gb", "degrees": [1, 2]}],
        rule="spec.capacity.pools.degrees: a worker on MIG slices takes one, for slices have no links between them; "
        "set degrees to [1], or use whole GPUs",
    ),
    one_change(
        "claim-with-the-name-of-ours",
        "spec.capacity.pools",
        [{**POOL, "computeDomain": True, "resourceClaims": [{"name": "compute-domain", "template": "imex"}]}],
        rule="spec.capacity.pools.resourceClaims: compute-domain is the name of the claim that computeDomain brings; "
        "rename yours",
    ),
)
