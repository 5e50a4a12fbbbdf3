"""Every Dockerfile can be followed by content tags, and ends in an image without root, shell or installer."""

import re
import tomllib

import pytest

from weft_e2e.images.catalogue import IMAGES, Image, repository_root
from weft_e2e.images.content import copied_paths
from weft_planner_tests.test_request_silicon import UNUSED_BY_PLANS

PUBLISHED = [image for image in IMAGES.values() if image.published]


def dockerfile_of(image: Image) -> str:
    return (repository_root() / image.dockerfile).read_text()


def final_stage(dockerfile: str) -> str:
    return dockerfile[dockerfile.rindex("\nFROM ") + 1 :]


def named(image: Image) -> str:
    return image.name


def test_every_folder_with_a_dockerfile_is_in_the_catalogue() -> None:
    folders = {path.parent.name for path in (repository_root() / "images").glob("*/Dockerfile")}
    # The base is built by a recipe of its own; vLLM's stands on an image of vLLM that nobody has here.
    assert folders - {"python", "vllm"} == {image.folder for image in IMAGES.values()}


@pytest.mark.parametrize("image", IMAGES.values(), ids=named)
def test_copied_paths_exist(image: Image) -> None:
    for path in copied_paths(dockerfile_of(image)):
        assert path in image.programs or (repository_root() / path).exists(), path


@pytest.mark.parametrize("image", IMAGES.values(), ids=named)
def test_final_image_starts_from_scratch_and_runs_as_nobody(image: Image) -> None:
    final = final_stage(dockerfile_of(image))
    assert final.startswith("FROM scratch\n")
    assert "\nUSER 65532:65532\n" in final
    assert re.search(r'^ENTRYPOINT \["/', final, re.MULTILINE)
    assert "RUN" not in final


@pytest.mark.parametrize("image", PUBLISHED, ids=named)
def test_a_user_that_the_image_does_not_know_has_a_name_and_a_home(image: Image) -> None:
    """OpenShift assigns one; kopf, for one, asks for its name and ends where there is none."""
    settings = set(re.findall(r"\b(?:HOME|USER)=\S+", final_stage(dockerfile_of(image))))
    assert settings == {"HOME=/tmp", "USER=weft"}


@pytest.mark.parametrize("image", PUBLISHED, ids=named)
def test_dependencies_are_pinned_by_hash_and_weft_comes_without_any(image: Image) -> None:
    installs = re.findall(r"pip\S* .*?install .*", dockerfile_of(image))
    assert len(installs) == (3 if image.name == "weft-mock-engine" else 4)
    assert all("--require-hashes" in line or ("--no-deps" in line and "--no-index" in line) for line in installs)


def pinned(name: str) -> set[str]:
    return set(re.findall(r"^[\w-]+==\S+", (repository_root() / f"requirements/{name}.txt").read_text(), re.MULTILINE))


def test_images_are_built_with_the_pinned_build_backend() -> None:
    project = tomllib.loads((repository_root() / "pyproject.toml").read_text())
    assert set(project["build-system"]["requires"]) <= pinned("build")


def test_the_router_is_compiled_by_what_its_tests_are_compiled_by() -> None:
    assert pinned("compile") <= pinned("dev")


def test_the_router_is_compiled_again_only_for_what_is_compiled() -> None:
    """It takes minutes, and the layers of a stage are kept until what it copies changes."""
    stage = dockerfile_of(IMAGES["weft-router"]).partition(" AS compiler\n")[2].partition("\nFROM ")[0]
    assert copied_paths(stage) == (
        "requirements/compile.txt",
        "images/compile_router.py",
        "images/untracked.h",
        "core/weft_core",
        "router/weft_router",
    )


def test_the_operator_s_image_has_the_tables_only_when_asked() -> None:
    declared, _, rest = dockerfile_of(IMAGES["weft-operator"]).partition("ARG SILICON=0\n")
    assert "-r requirements/operator-silicon.txt" not in declared
    assert rest.startswith('RUN test "${SILICON}" = 0 ')
    assert rest.partition("\nCOPY ")[0].endswith("-r requirements/operator-silicon.txt")
    assert pinned("operator-silicon") < pinned("silicon")
    packages = {pin.partition("==")[0] for pin in pinned("silicon") - pinned("operator-silicon")}
    assert packages == UNUSED_BY_PLANS | {"numpy", "python-dateutil", "pyyaml", "tzdata"}


def test_a_user_compiles_the_router_by_default_and_may_leave_it_out() -> None:
    stage = dockerfile_of(IMAGES["weft-router"]).partition(" AS compiler\n")[2].partition("\nFROM ")[0]
    assert stage.startswith("ARG COMPILED=1\n")
    runs = re.findall(r"^RUN (.*?[^\\])$", stage, re.MULTILINE | re.DOTALL)
    assert len(runs) == 3
    assert all('test "${COMPILED}" = 0 ' in command for command in runs), "each minute of it is left out"


@pytest.mark.parametrize("image", PUBLISHED, ids=named)
def test_a_user_builds_on_the_official_python_by_default(image: Image) -> None:
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+-slim-\w+$", dockerfile_of(image), re.MULTILINE)


def test_the_operator_does_not_use_what_its_image_leaves_out() -> None:
    left_out = re.findall(r"--without (\S+)", dockerfile_of(IMAGES["weft-operator"]))
    assert left_out == ["kubernetes/aio", "numba/cuda", "tests"]
    modules = [part.replace("/", ".") for part in left_out if "/" in part]
    for package in ("operator/weft_operator", "planner/weft_planner", "core/weft_core"):
        for source in (repository_root() / package).rglob("*.py"):
            assert not any(module in source.read_text() for module in modules), source


@pytest.mark.parametrize("name", ["weft-router", "weft-mock-engine"])
def test_workers_do_not_change_with_the_planner_or_the_operator(name: str) -> None:
    paths = copied_paths(dockerfile_of(IMAGES[name]))
    assert [path for path in paths if path.startswith(("planner", "operator"))] == []
