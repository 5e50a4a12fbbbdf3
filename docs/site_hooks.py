"""Let the site hold what pages link to outside of docs/: Markdown as pages, files with their text, folders as lists.

On a code host such links lead to the repository; here they lead to pages made of it, so that every link is checked and
the site is whole without a network.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/decisions", "docs/examples")
FENCE = re.compile(r"^(?: *)```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\[[^\]]*\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
LONG_NAME = re.compile(r"(?<=<code>)[^<]{16,}(?=</code>)")
LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".py": "python", ".mod": "text"}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add a page for everything that pages link to and that is none of their own."""
    here = {file.src_uri for file in files}
    todo = [ROOT / name for name in ALWAYS]
    for file in files.documentation_pages():
        todo += _targets(DOCS / file.src_uri, file.content_string)
    while todo:
        path = todo.pop()
        uri = _uri(path)
        if uri in here or not path.exists():
            continue
        here.add(uri)
        if path.suffix == ".svg":
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            continue
        text = _text(path)
        files.append(File.generated(config, uri, content=_linked(text, path, uri)))
        todo += _targets(path, text)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page of docs/ at the site's pages."""
    uri = page.file.src_uri
    return markdown if page.file.generated_by else _linked(markdown, DOCS / uri, uri)


def on_page_content(html: str, **_: Any) -> str:
    """Let long names in tables break where they have a separator, or tables would be wider than their page."""
    lines = html.split("\n")
    for at, line in enumerate(lines):
        if line.startswith("<td"):
            lines[at] = LONG_NAME.sub(lambda name: re.sub(r"([._:/=])(?=\w)", r"\1<wbr>", name[0]), line)
    return "\n".join(lines)


def _targets(path: Path, text: str) -> Iterator[Path]:
    """Yield what a page links to and shows; addresses aside."""
    folder = path if path.is_dir() else path.parent
    for found in LINK.finditer(FENCE.sub("", text)):
        yield Path(os.path.normpath(folder / unquote(found[2])))


def _uri(path: Path) -> str:
    """Return where in the site a file or folder of the repository is."""
    inside = path.is_relative_to(DOCS)
    uri = PurePosixPath(path.relative_to(DOCS)) if inside else PurePosixPath("repository", path.relative_to(ROOT))
    if path.is_dir():
        return str(uri / "index.md")
    shown = str(uri).replace("/.", "/")  # MkDocs leaves out what begins with a dot
    return shown if path.suffix in {".md", ".svg"} else f"{shown}.md"


def _text(path: Path) -> str:
    """Return a file or folder as Markdown."""
    name = path.relative_to(ROOT)
    if path.is_dir():
        inside = sorted(item for item in path.iterdir() if item.name[0] not in "._")
        return f"# {path.name.capitalize()}\n\n" + "".join(f"- [{_title(item)}]({item.name})\n" for item in inside)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# {path.name}\n\n`{name}`\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"


def _title(path: Path) -> str:
    """Return what a list says of a file: its heading, or the first line of its comment."""
    if path.is_dir():
        return path.name
    first = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("#/ ").strip()
    return first if path.suffix == ".md" else f"{path.name}: {first}" if path.suffix == ".yaml" else path.name


def _linked(text: str, path: Path, uri: str) -> str:
    """Return a page's Markdown with links to the site's pages, and code in tables as this Markdown wants it."""
    folder = path if path.is_dir() else path.parent

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / unquote(found[2])))
        if not target.exists() or not target.is_relative_to(ROOT):
            return found[0]
        return found[1] + os.path.relpath(_uri(target), Path(uri).parent) + found[3]

    parts = re.split(f"({FENCE.pattern})", text, flags=FENCE.flags)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), LINK.sub(link, parts[at]))
    return "".join(parts)
