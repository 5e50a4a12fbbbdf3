"""Roles in ``weft local``: layouts, role files, and what the command to change a role says."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from weft_cli.errors import BadInputError
from weft_e2e.local import kept, rendering, roles
from weft_e2e.local.cli import local
from weft_e2e_tests.test_local_rendering import EXAMPLES, rendered


def written(folder: Path, layout: rendering.Layout = "planned") -> Path:
    """Write the files of a service into a folder, and return it."""
    found = rendered()
    engines = rendering.lay_out(found, rendering.mock_engines(found, range(1, 7)), layout)
    for name, text in rendering.files(found, engines).items():
        (folder / name).write_text(text)
    (folder / "router.log").write_text("")
    return folder


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("planned", ["decode", "prefill", "prefill"]),
        ("symmetric", ["both", "both", "both"]),
        ("hybrid", ["both", "prefill", "prefill"]),
    ],
)
def test_a_layout_says_with_which_roles_workers_begin(
    tmp_path: Path, layout: rendering.Layout, expected: list[str]
) -> None:
    written(tmp_path, layout)
    workers = json.loads((tmp_path / "workers.json").read_text())["workers"]
    assert [one["role"] for one in workers] == expected
    assert [(tmp_path / one["roleFile"]).read_text().strip() for one in workers] == expected


def test_engines_of_a_fixed_role_have_no_role_file_and_no_other_layout(tmp_path: Path) -> None:
    found = rendered(EXAMPLES / "llama-3.1-8b.yaml")
    fixed = found.record.spec.model_copy(
        update={"engine": found.record.spec.engine.model_copy(update={"type": "sglang"})}
    )
    found = replace(found, record=replace(found.record, spec=fixed))
    engines = rendering.mock_engines(found, range(1, 7))
    files = rendering.files(found, engines)
    assert not any(name.startswith("role-") for name in files)
    assert "roleFile" not in files["workers.json"]
    with pytest.raises(BadInputError, match="--layout symmetric: the roles of its workers are fixed"):
        rendering.lay_out(found, engines, "symmetric")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInputError, match="fixed role"):
        roles.change(tmp_path, engines[0].name, "both")


def test_mock_engines_of_movable_workers_do_both(tmp_path: Path) -> None:
    found = rendered()
    (engine, *_) = rendering.mock_engines(found, range(1, 7))
    part = rendering.engine_part(found, engine, folder=tmp_path, time_scale=None)
    assert [arg for arg in part.args if arg.startswith("--role=")][-1] == "--role=both"


def test_a_role_is_written_and_its_change_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    name = "llama-3-1-8b-p1-0"
    lines = [
        {"event": "role_changed", "worker": "another", "from": "decode", "to": "both", "seconds": 0.0},
        {"event": "role_changed", "worker": name, "from": "prefill", "to": "decode", "seconds": 0.2},
    ]

    def router() -> None:
        role = tmp_path / f"role-{name}"
        while role.read_text().strip() != "decode":
            pass
        with (tmp_path / "router.log").open("a") as log:
            log.write("no JSON\n" + "".join(json.dumps(line) + "\n" for line in lines))

    thread = threading.Thread(target=router, daemon=True)
    thread.start()
    assert roles.change(tmp_path, name, "decode") == f"{name}: prefill -> decode in 0.2 s"
    thread.join(5)
    assert roles.change(tmp_path, name, "decode") == f"{name} is assigned decode already"
    monkeypatch.setattr("weft_e2e.local.roles.WAIT_S", 0.0)
    assert "still hands its sessions over" in roles.change(tmp_path, name, "prefill")


def test_who_asks_for_what_is_not_there_is_told_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    assert kept.folder().is_relative_to(tmp_path)
    asked = CliRunner().invoke(local, ["role", "d0", "both"])
    assert asked.exit_code == 2
    assert "no `weft local` runs here" in asked.output
    with roles.announced(tmp_path):
        assert roles.running_folder(None) == tmp_path
        asked = CliRunner().invoke(local, ["role", "d0", "both"])
        assert "is no folder of a `weft local`" in asked.output
        written(tmp_path)
        asked = CliRunner().invoke(local, ["role", "d0", "both"])
        assert asked.exit_code == 2
        assert "WORKER: d0 is not one of llama-3-1-8b-d2-0, " in asked.output
    with pytest.raises(BadInputError):
        roles.running_folder(None)
    assert CliRunner().invoke(local, ["role", "d0", "butler"]).exit_code == 2
