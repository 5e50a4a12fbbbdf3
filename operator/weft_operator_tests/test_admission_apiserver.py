"""A6 on a real API server: of 500 generated changes it admits those that the checks of ``weft plan -f`` admit."""

import re
from typing import Any

import pytest

from weft_core_tests.property_tests import examples
from weft_operator.commands.manifest_checks import service_messages
from weft_operator_tests.api import RealApi
from weft_operator_tests.mutations import COUNT, mutations
from weft_operator_tests.valid import changed, service

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(400, func_only=True)]


def test_the_api_server_admits_what_the_checks_admit(api: RealApi) -> None:
    namespace = api.namespace()
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices"
    wrong = []
    for mutation in mutations()[:: COUNT // examples(COUNT)]:
        body = mutation.body()
        body["metadata"]["namespace"] = namespace
        asked = f"{path}/{body['metadata']['name']}?dryRun=All&fieldManager=user&fieldValidation=Strict&force=true"
        status, answer = api.attempt("PATCH", asked, body)
        said = service_messages(body)
        # Patches of pods are plain JSON to it, and it compares no amounts.
        both = [message for message in said if not re.search(r"podTemplates|is above limits", message)]
        if (status >= 400 and not said) or (status < 400 and both):
            wrong.append(f"{mutation.name}: {status} {str(answer.get('message'))[:200]}, and the checks say {said}")
    assert wrong == []


def test_an_empty_list_of_classes_names_no_unknown_class(api: RealApi) -> None:
    namespace = api.namespace()
    body = changed(service(), "spec.slo.classes", [])
    body["metadata"]["namespace"] = namespace
    path = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/{body['metadata']['name']}"
    status, answer = api.attempt("PATCH", f"{path}?dryRun=All&fieldManager=user&fieldValidation=Strict", body)
    assert status < 400, answer


POOL = {"name": "h20", "gpuType": "nvidia-h20"}
WITH_VALUES: list[tuple[str, Any, str]] = [
    ("spec.capacity.pools.0.gpus", 64, "lower it or raise the budget (got 64, budget 16)"),
    ("spec.capacity.pools", [{**POOL, "gpusPerNode": 3, "degrees": [1, 8]}], "(got 8 GPUs, nodes of 3)"),
    (
        "spec.capacity.pools",
        [{**POOL, "parallelism": [{"tp": 4}, {"tp": 4, "pp": 3}]}],
        "(got tp 4, pp 3, dp 1: 12 GPUs, nodes of 8)",
    ),
    (
        "spec.capacity.pools",
        [{**POOL, "parallelism": [{"tp": 8, "pp": 2, "dp": 2}]}],
        "choose a tp x pp that divides gpusPerNode (got tp 8, pp 2, dp 2: 32 GPUs, nodes of 8)",
    ),
    (
        "spec.capacity.pools",
        [{**POOL, "parallelism": [{"tp": 8, "dp": 65}]}],
        "lower dp, pp or tp (got tp 8, pp 1, dp 65: 520 GPUs, nodes of 8)",
    ),
    ("spec.capacity.pools", [{**POOL, "gpusPerRack": 12}], "(got 12 GPUs, nodes of 8)"),
    (
        "spec.capacity.pools",
        [{**POOL, "gpusPerRack": 16, "degrees": [8, 32]}],
        "(got 32 GPUs, racks of 16)",
    ),
    (
        "spec.capacity.pools",
        [{**POOL, "gpusPerRack": 16, "parallelism": [{"tp": 8, "dp": 4}]}],
        "(got 32 GPUs, racks of 16)",
    ),
]
"""Fields, values that rules refuse, and what the message says of them."""


def test_messages_of_rules_name_the_value(api: RealApi) -> None:
    namespace = api.namespace()
    for path, value, words in WITH_VALUES:
        body = changed(service(), path, value)
        body["metadata"]["namespace"] = namespace
        at = f"apis/weft.dev/v1alpha1/namespaces/{namespace}/disagginferenceservices/{body['metadata']['name']}"
        status, answer = api.attempt("PATCH", f"{at}?dryRun=All&fieldManager=user&fieldValidation=Strict", body)
        assert status >= 400, path
        assert words in str(answer.get("message")), path
    engine = {"type": "vllm", "image": "vllm:0.32.0", "maxNumSeqs": 512, "decode": {"maxNumBatchedTokens": 256}}
    body = changed(service(), "spec.engine", engine)
    body["metadata"]["namespace"] = namespace
    status, answer = api.attempt("PATCH", f"{at}?dryRun=All&fieldManager=user&fieldValidation=Strict", body)
    assert status >= 400
    assert "(got 512 sequences, 256 tokens)" in str(answer.get("message"))
