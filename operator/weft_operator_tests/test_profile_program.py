"""The program of a measuring pod runs ``weft profile`` where its log can be followed, and bounds it."""

import subprocess
import sys
import threading
import time

import pytest

from weft_operator.profiling import measure

pytestmark = pytest.mark.component


def playing(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(measure, "PROFILE", (sys.executable, "-u", "-c", code))


def test_the_last_line_is_the_reason_and_all_lines_are_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    playing(monkeypatch, "import sys; print('warming up', file=sys.stderr); sys.exit('Error: the engine failed')")
    with pytest.raises(measure.MeasurementFailed, match=r"^the engine failed$"):
        measure.run_profile([], 30.0)
    assert capsys.readouterr().err == "warming up\nError: the engine failed\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(7)", "ended with 7"),
        ("import sys; sys.stderr.buffer.write(b'broken \\xff\\n'); sys.exit(2)", "broken"),
    ],
    ids=["without a word", "no text"],
)
def test_a_program_that_fails_is_named_whatever_it_says(monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    playing(monkeypatch, code)
    with pytest.raises(measure.MeasurementFailed, match=said):
        measure.run_profile([], 30.0)


def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, "import time; time.sleep(600)")
    began = time.monotonic()
    with pytest.raises(measure.MeasurementFailed, match="measuring took longer than 1 s"):
        measure.run_profile([], 1.0)
    assert time.monotonic() - began < 30
    assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


def test_its_words_reach_it_and_success_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    playing(monkeypatch, "import sys; assert sys.argv[1:] == ['engine', '--budget', '1m'], sys.argv")
    measure.run_profile(["engine", "--budget", "1m"], 30.0)
    assert subprocess.run([*measure.PROFILE, "engine"], check=False, capture_output=True).returncode
