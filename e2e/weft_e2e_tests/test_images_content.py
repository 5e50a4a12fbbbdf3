"""The content tag follows exactly what goes into an image."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_e2e.images.content import DIGEST_LENGTH, context_files, copied_paths, digest, stage
from weft_e2e.images.errors import RecipeError


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write(tmp_path, {"a/one.py": "1", "a/deep/two.py": "2", "single": "s", "a/__pycache__/one.pyc": "x", "other": "o"})
    return tmp_path


def test_copied_paths_are_those_of_the_context_each_once() -> None:
    dockerfile = """\
FROM base AS build
COPY a b /dest/
  COPY single /
ADD a /again/
RUN echo COPY not-a-copy
# COPY comment /
COPY --from=build /rootfs /
"""
    assert copied_paths(dockerfile) == ("a", "b", "single")


@pytest.mark.parametrize(
    "line", ["COPY src/*.py /", "COPY a b \\", "COPY --chown=1 a /", 'COPY ["a", "/"]', "COPY $NAME /", "ADD", "copy a"]
)
def test_a_copy_that_a_tag_cannot_follow_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(RecipeError, match=r"line 2: .*plain paths on one line"):
        copied_paths(f"FROM scratch\n{line}\n")


def test_context_holds_every_file_below_the_copied_paths_and_nothing_else(repository: Path) -> None:
    outside = repository / "other"
    files = context_files(repository, ("a", "single", "program"), outside={"program": outside})
    assert files == {
        "a/deep/two.py": repository / "a/deep/two.py",
        "a/one.py": repository / "a/one.py",
        "program": outside,
        "single": repository / "single",
    }
    assert list(files) == sorted(files)


def test_a_copied_path_that_does_not_exist_is_named(repository: Path) -> None:
    with pytest.raises(RecipeError, match="'gone', which does not exist"):
        context_files(repository, ("gone",), outside={})


def tag_of(root: Path, *, dockerfile: str = "FROM scratch", args: dict[str, str] | None = None) -> str:
    return digest(context_files(root, ("a",), outside={}), dockerfile=dockerfile, args=args or {})


def test_tag_changes_with_content_name_mode_dockerfile_and_arguments(repository: Path) -> None:
    tags = [tag_of(repository), tag_of(repository, dockerfile="FROM x"), tag_of(repository, args={"A": "1"})]
    tags.append(tag_of(repository, args={"A": "2"}))
    (repository / "a/one.py").chmod(0o755)
    tags.append(tag_of(repository))
    (repository / "a/one.py").write_text("changed")
    tags.append(tag_of(repository))
    (repository / "a/one.py").rename(repository / "a/renamed.py")
    tags.append(tag_of(repository))
    assert len(set(tags)) == len(tags)
    assert all(len(tag) == DIGEST_LENGTH for tag in tags)


def test_tag_ignores_bytecode_other_files_and_the_place_of_the_repository(repository: Path, tmp_path: Path) -> None:
    before = tag_of(repository)
    write(repository, {"a/__pycache__/one.pyc": "changed", "other": "changed"})
    assert tag_of(repository) == before
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, {"a/one.py": "1", "a/deep/two.py": "2"})
    assert tag_of(elsewhere) == before


NAMES = st.text(alphabet="abc/", min_size=1, max_size=6)


@given(st.dictionaries(NAMES, NAMES, max_size=5))
def test_tag_does_not_depend_on_the_order_of_arguments(args: dict[str, str]) -> None:
    reversed_args = dict(reversed(args.items()))
    assert digest({}, dockerfile="", args=args) == digest({}, dockerfile="", args=reversed_args)


def test_staged_context_is_what_was_hashed(repository: Path, tmp_path: Path) -> None:
    (repository / "a/one.py").chmod(0o750)
    files = context_files(repository, ("a",), outside={})
    stage(files, tmp_path / "context")
    staged = context_files(tmp_path / "context", ("a",), outside={})
    assert digest(staged, dockerfile="", args={}) == digest(files, dockerfile="", args={})
    assert (tmp_path / "context/a/one.py").stat().st_mode & 0o777 == 0o755
