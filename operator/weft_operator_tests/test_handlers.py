"""What kopf is told to bring: only our objects, a part at a time, and no copies of them."""

from typing import Any

import kopf
import pytest

from weft_operator.api.objects import SERVICE_LABEL
from weft_operator.kube.watch_handlers import LIST_PAGE_SIZE, NoDiffBase, watch_settings


@pytest.mark.parametrize(
    ("group", "plural", "asked"),
    [
        ("", "pods", [SERVICE_LABEL]),
        ("apps", "statefulsets", [SERVICE_LABEL]),
        ("apps", "deployments", [SERVICE_LABEL]),
        ("weft.dev", "workergroups", [SERVICE_LABEL]),
        ("weft.dev", "disagginferenceservices", []),
        ("weft.dev", "costprofiles", []),
    ],
)
def test_the_api_server_sends_no_objects_but_ours(group: str, plural: str, asked: list[str]) -> None:
    watching = watch_settings().watching
    assert list(watching.label_selectors.collect(kopf.Resource(group, "v1", plural))) == asked
    assert watching.chunk_size == LIST_PAGE_SIZE


def test_no_object_is_copied_or_compared() -> None:
    class Untouchable(dict[str, Any]):
        def __deepcopy__(self, memo: object) -> "Untouchable":
            raise AssertionError("an object was copied")

    body = kopf.Body({"metadata": {"name": "x"}, "spec": Untouchable(replicas=1)})
    storage = watch_settings().persistence.diffbase_storage
    assert isinstance(storage, NoDiffBase)
    assert storage.build(body=body, extra_fields=["spec.replicas"]) == {}
    assert storage.fetch(body=body) is None
    patch = kopf.Patch()
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert not patch
