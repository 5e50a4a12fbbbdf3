"""Valid objects that tests begin with, and a way to change one field of them."""

import copy
from functools import cache
from typing import Any

import yaml

from weft_operator.api import DisaggInferenceServiceSpec
from weft_operator.api.objects import Manifest

SERVICE = """
apiVersion: weft.dev/v1alpha1
kind: DisaggInferenceService
metadata: {name: demo, namespace: default}
spec:
  model: {name: meta-llama/Llama-3.1-70B-Instruct, maxModelLen: 32768}
  engine: {type: mock}
  slo: {ttft: 2s, itl: 40ms}
  workload:
    arrivalRate: 0.6
    rounds: {mean: 5}
    firstPrompt: {mean: 1000}
    increment: {mean: 800}
    decode: {mean: 280}
    gap: {mean: 2s}
  capacity:
    gpus: 16
    pools:
      - {name: h20, gpuType: nvidia-h20, gpusPerNode: 8, degrees: [1, 2, 4, 8], rdma: {resource: rdma/ib, count: 1}}
"""

VLLM = {
    "type": "vllm",
    "image": "registry.example.com/team/vllm-nixl:0.32.0",
    "args": ["--enable-chunked-prefill"],
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
    "resources": {"requests": {"cpu": 8, "memory": "64Gi"}, "limits": {"memory": "200Gi"}},
    "sharedMemory": "16Gi",
}

PROFILE: Manifest = {
    "apiVersion": "weft.dev/v1alpha1",
    "kind": "CostProfile",
    "metadata": {"name": "measured", "namespace": "default"},
    "spec": {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "gpu": "nvidia-h20",
        "engine": "vllm 0.32.0",
        "kvBytesPerToken": 327680,
        "degrees": [
            {
                "degree": degree,
                "weightBytesPerGpu": 141_000_000_000 // degree,
                "kvCapacityTokens": 100_000 * degree,
                "prefill": [{"alpha": 0.02, "perToken": 0.0008 / degree}],
                "decode": [{"alpha": 0.01, "perSequence": 0.0002, "perContextToken": 1e-8}],
            }
            for degree in (4, 8)
        ],
        "transfers": [
            {"source": source, "destination": destination, "link": link, "alpha": 0.005, "perToken": 1e-6}
            for source in (4, 8)
            for destination in (4, 8)
            for link in ("intra-node", "inter-node")
        ],
    },
}


def service() -> Manifest:
    """Return a valid service on two nodes of 8 GPUs with the mock engine."""
    return copy.deepcopy(_service())


@cache
def _service() -> Manifest:
    body: Manifest = yaml.safe_load(SERVICE)
    return body


def rich_service() -> Manifest:
    """Return a valid service whose workload has distributions, classes with SLOs of their own, and bursts."""
    body = service()
    body["spec"]["slo"]["classes"] = [{"name": "chat", "ttft": "1s", "itl": "30ms"}]
    body["spec"]["workload"] |= {
        "arrivals": {"process": "gamma", "cv": 1.5},
        "rounds": {"mean": 5, "quantiles": {"at": [0, 0.3, 0.3, 1], "values": [1, 1, 4, 12]}},
        "decode": {"mean": 280, "cv": 0.9},
        "gap": {"mean": "2s", "quantiles": {"at": [0, 0.9, 1], "values": ["0s", "1500ms", "1m"]}},
        "sharedPrefix": 200,
        "classes": [
            {"name": "chat", "share": 3, "gap": {"mean": "20s", "cv": 1}},
            {
                "name": "agents",
                "share": 1,
                "rounds": {"mean": 12, "histogram": {"edges": [1, 12, 20], "weights": [3, 5]}},
            },
        ],
    }
    return body


def traced_service() -> Manifest:
    """Return a valid service whose workload is in a ConfigMap."""
    return changed(service(), "spec.workload", {"traceConfigMap": {"name": "trace", "key": "sessions.jsonl"}})


FRONT = """
routing:
  policy: weft
  hedge: {mode: Auto}
  slices: {leastTokens: 1024}
  firstTokenFromPrefill: Auto
  resume: Exact
  predictionCorrection: "Off"
  onPrefillFailure: Other
  classes:
    - {name: interactive, priority: 2, queueLimit: 64}
    - {name: batch, earlyRejection: true, tolerance: 2, outputCap: true, maxOutputTokens: 2048, localOnly: Pressure,
       policy: threshold, params: {queue_limit: 4}, binding: least-requests}
  qos:
    defaultClass: interactive
    maxWaiting: 512
    fallbackService: small
    pressure: {kvUse: 0.9}
    tenants:
      - {name: acme, weight: 3, rates: {requestsPerSecond: 50, tokensPerMinute: 600000, burst: 20s}}
      - {name: auth0|nightly, defaultClass: batch, classes: [batch]}
coordinator:
  auth:
    apiKeySecretRef: {name: api-keys, key: keys}
    jwt: {issuer: "https://login.example.com/", audiences: [weft], jwksUri: "https://login.example.com/keys.json",
          tenantClaim: org, classClaim: tier, limitsClaim: limits}
  tls: {secretRef: {name: front-tls}, minVersion: VersionTLS13}
  limits: {maxConnections: 5000, rates: {concurrent: 200}, quarantine: 5m}
  requests: {allowedFields: [chat_template, tools.mcp], allowedMediaHosts: [media.example.com, "*.cdn.net"]}
telemetry: {otlpEndpoint: "http://collector.monitoring:4318", sampleRatio: 0.05, accessLog: {sampleRatio: 0.1}}
"""


def front_service() -> Manifest:
    """Return a valid service with classes of requests, tenants, tokens, a certificate, rates and traces."""
    body = rich_service()
    body["spec"] |= yaml.safe_load(FRONT)
    return body


def gateway_service() -> Manifest:
    """Return a valid service behind a gateway, at its coordinator."""
    body = service()
    parents = [{"name": "public", "namespace": "gateways", "sectionName": "https"}, {"name": "internal"}]
    body["spec"]["gateway"] = {"parentRefs": parents, "hostnames": ["llm.example.com"]}
    return body


def picker_service() -> Manifest:
    """Return a valid service behind a gateway, with endpoint pickers."""
    body = gateway_service()
    body["spec"]["gateway"] |= {"mode": "endpointPicker", "failureMode": "FailOpen"}
    return body


def vllm_service() -> Manifest:
    """Return a valid service with vLLM, a gated model, a node selector and tolerations."""
    body = service()
    body["spec"]["engine"] = copy.deepcopy(VLLM)
    body["spec"]["model"]["source"] = {"huggingFace": {"tokenSecretRef": {"name": "huggingface", "key": "token"}}}
    body["spec"]["capacity"]["pools"][0] |= {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H20"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return body


SGLANG = {
    "type": "sglang",
    "image": "registry.example.com/team/sglang:v0.5.10",
    "args": ["--log-requests"],
    "kvTransfer": {"bidirectional": False, "blockTokens": {"prefill": 64, "decode": 64}},
    "sharedMemory": "16Gi",
}

TENSORRT_LLM = {
    "type": "tensorrt-llm",
    "image": "registry.example.com/team/tensorrt-llm:1.3.0",
    "args": ["--num_postprocess_workers=4"],
    "maxNumSeqs": 64,
    "kvTransfer": {"bidirectional": False},
    "sharedMemory": "16Gi",
}


NEURON = {
    "type": "neuron",
    "image": "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.9.1-neuronx-py311-sdk2.26.1-ubuntu22.04",
    "maxNumSeqs": 8,
    "neuron": {
        "contextBuckets": [1024, 4096, 8192],
        "tokenBuckets": [2048, 8192],
        "config": {"fused_qkv": True, "sequence_parallel_enabled": True},
    },
    "kvTransfer": {"bidirectional": False},
    "sharedMemory": "16Gi",
}


def neuron_service() -> Manifest:
    """Return a valid service with Neuron's fork of vLLM, on the cores of two nodes of 16 chips."""
    body = changed(service(), "spec.engine", NEURON)
    body["spec"]["model"]["maxModelLen"] = 8192
    pool = {"name": "trn2", "gpuType": "aws-trainium2", "resource": "aws.amazon.com/neuroncore", "gpusPerNode": 64}
    efa = {"resource": "vpc.amazonaws.com/efa", "count": 8}
    body["spec"]["capacity"] = {"gpus": 128, "pools": [{**pool, "degrees": [16, 32], "rdma": efa}]}
    return body


def sglang_service() -> Manifest:
    """Return a valid service with SGLang."""
    return changed(service(), "spec.engine", SGLANG)


def tensorrt_llm_service() -> Manifest:
    """Return a valid service with TensorRT-LLM."""
    return changed(service(), "spec.engine", TENSORRT_LLM)


def pools_service() -> Manifest:
    """Return a valid service over nodes of two GPU types, with prices, links of its own and a budget."""
    body = service()
    body["spec"]["capacity"]["pools"] = [
        {"name": "h20", "gpuType": "nvidia-h20", "pricePerGpuHour": 2.5, "nodeSelector": {"gpu": "h20"}},
        {
            "name": "h100",
            "gpuType": "nvidia-h100",
            "gpus": 8,
            "resource": "example.com/h100",
            "degrees": [2, 4],
            "pricePerGpuHour": 6,
            "interconnect": {"inNode": 200, "acrossNodes": 40},
            "rdma": {"resource": "rdma/ib"},
            "nodeSelector": {"gpu": "h100"},
        },
    ]
    body["spec"]["planning"] = {"objective": "cost", "budgetPerHour": 80}
    return body


def spec(body: Manifest | None = None) -> DisaggInferenceServiceSpec:
    """Return the parsed spec of a service."""
    return DisaggInferenceServiceSpec.model_validate((body or service())["spec"])


REMOVED: Any = object()


def changed(body: Manifest, path: str, value: Any) -> Manifest:
    """Return a copy with one field set (or removed, with ``REMOVED``); list positions are numbers in the path."""
    copied = copy.deepcopy(body)
    *parents, last = path.split(".")
    at: Any = copied
    for name in parents:
        at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
    if value is REMOVED:
        del at[int(last) if isinstance(at, list) else last]
    elif isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value
    return copied
