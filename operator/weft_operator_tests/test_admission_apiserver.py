"""A6 on a real API server: of 500 generated changes it admits those that the checks of ``weft plan -f`` admit."""

import re

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
