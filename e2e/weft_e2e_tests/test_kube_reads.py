"""Reads of a busy API server: what is cut off is asked again, what is refused is not."""

import subprocess
from dataclasses import dataclass, field

import pytest

from weft_e2e import kube
from weft_e2e_tests.fake_kube import Done, FakeKube


@dataclass
class Busy(FakeKube):
    """Fails with these words before it answers."""

    errors: list[Exception] = field(default_factory=list)
    asked: int = 0

    def kubectl(self, *args: str, input: str | None = None, timeout: float = 60.0, check: bool = True) -> Done:  # noqa: A002, ARG002
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return subprocess.CompletedProcess(args, 0, '{"items": []}', "")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "_PAUSE_S", 0.0)


CUT_OFF = (
    "`kubectl get pods` did not end within 60 s",
    "failed with 1: Unable to connect to the server: net/http: TLS handshake timeout",
    'failed with 1: Get "https://127.0.0.1:6443/api": unexpected EOF',
    "failed with 1: The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?",
    "failed with 1: Error from server: etcdserver: request timed out",
)


@pytest.mark.parametrize("words", CUT_OFF)
def test_a_read_that_is_cut_off_is_asked_again(words: str) -> None:
    busy = Busy(errors=[kube.KubeError(words), kube.KubeError(words)])
    assert kube.items(busy, "pods", namespace="a") == []
    assert busy.asked == 3


def test_a_server_that_never_answers_is_given_up() -> None:
    busy = Busy(errors=[kube.KubeError(CUT_OFF[0]) for _ in range(kube.READS)])
    with pytest.raises(kube.KubeError, match="did not end within"):
        kube.get(busy, "pods", "p", namespace="a")
    assert busy.asked == kube.READS


@pytest.mark.parametrize(
    "words",
    ['failed with 1: Error from server (NotFound): pods "p" not found', "failed with 1: Error from server (Forbidden)"],
)
def test_an_answer_that_is_no_is_taken(words: str) -> None:
    busy = Busy(errors=[kube.KubeError(words)])
    with pytest.raises(kube.KubeError):
        kube.read(busy, "get", "pods")
    assert busy.asked == 1
