"""What the site has besides the pages in docs/: the README as its home, an API reference, and files that pages link to.

Pages are written for the repository, where links to `../examples/plug_in.py` or `../results/cifar10/` work. On the site
a linked text file becomes a page under `files/`, a figure is copied, and a link to a folder becomes plain text.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
LANGUAGES = {".py": "python", ".h": "c", ".c": "c", ".toml": "toml"}
TITLES = {
    "data": "Data sets", "deploy": "Thresholds and packed networks", "detect": "Detectors", "evidence": "Evidence",
    "metrics": "Metrics and statistics", "nets": "Networks", "objectives": "Objectives", "recipe": "Recipes",
    "run": "Runs", "score": "Scoring", "sparse": "Sparse topologies", "training": "Training", "grid": "Grids",
    "results": "Results", "errors": "Exceptions",
}  # fmt: skip
KINDS = {"objective": "Objectives", "topology": "Topologies", "detector": "Detectors"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the cards and the pages of the reference, which mkdocs.yml names by folder only."""
    pages = {"methods/": method_nav(), "reference/": ["reference/index.md", *(uri for uri, _ in package_pages())]}
    assert config.nav is not None
    for entry in config.nav:
        for title, target in entry.items():
            if isinstance(target, str) and target.endswith("/"):
                entry[title] = pages[target]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the home page, the reference, and every file outside docs/ that a page links to."""
    add = {"index.md": (ROOT / "README.md").read_text()}
    add |= dict(reference_pages())
    pages = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    pages += [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
    seen = set()
    while pages:
        source = pages.pop()
        for outside in (source, *linked_files(source)):
            if outside in seen or (ROOT / "docs") in outside.parents or outside == ROOT / "README.md":
                continue
            seen.add(outside)
            uri = site_uri(outside)
            if outside.suffix in (".svg", ".png"):
                files.append(File.generated(config, uri, abs_src_path=str(outside)))
                continue
            add[uri] = as_page(outside)
            if outside.suffix == ".md":
                pages.append(outside)
    for uri, content in add.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to where the site has their targets."""
    here = repository_path(page.file.src_uri)
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]

    def replaced(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        absolute = ROOT / path
        if absolute.is_dir():
            return f"{match['text']} (`{path}/`)" if match["text"].strip("`") != path else f"`{path}/`"
        if not absolute.is_file():
            return match[0]  # the strict build reports it
        uri = site_uri(absolute)
        relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['image']}[{match['text']}]({relative}{'#' + anchor if anchor else ''})"

    # Code is left alone: a subscript followed by a call looks like a link.
    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else LINK.sub(replaced, part) for index, part in enumerate(parts))


def repository_path(uri: str) -> str:
    """The file of the repository that a page of the site shows."""
    if uri == "index.md":
        return "README.md"
    if uri.startswith("files/"):
        return uri.removeprefix("files/").removesuffix(".page.md")
    return f"docs/{uri}"


def site_uri(path: Path) -> str:
    """Where the site has a file of the repository."""
    relative = path.relative_to(ROOT).as_posix()
    if relative == "README.md":
        return "index.md"
    if relative.startswith("docs/"):
        return relative.removeprefix("docs/")
    is_copied = path.suffix in (".md", ".svg", ".png")
    return f"files/{relative}" if is_copied else f"files/{relative}.page.md"


def linked_files(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    for match in LINK.finditer(page.read_text()):
        target = match["target"].partition("#")[0]
        if target and "://" not in target and (path := (page.parent / target).resolve()).is_file():
            yield path


def as_page(path: Path) -> str:
    """A text file as a page."""
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".ipynb":
        return notebook_page(path)
    return f"# {name}\n\n````{LANGUAGES.get(path.suffix, '')}\n{path.read_text()}\n````\n"


def notebook_page(path: Path) -> str:
    """A notebook as a page: its text and code."""
    cells = json.loads(path.read_text())["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts)


def method_nav() -> list[str | dict[str, list[str]]]:
    """The cards by kind, in the order of the table of methods; cards that it does not list come last."""
    kind_of: dict[str, str] = {}
    folder = ROOT / "docs/methods"
    for row in re.finditer(
        r"^\| [^|]+ \| ([^|]+) \| .*\[(\w+\.md)\]", (folder / "README.md").read_text(), re.MULTILINE
    ):
        kind_of.setdefault(f"methods/{row[2]}", KINDS.get(row[1].strip(), "Parts of training"))
    for path in sorted(folder.glob("*.md")):
        kind_of.setdefault(f"methods/{path.name}", "More")
    del kind_of["methods/README.md"]
    kinds: dict[str, list[str]] = {}
    for page, kind in kind_of.items():
        kinds.setdefault(kind, []).append(page)
    return ["methods/README.md", *({kind: pages} for kind, pages in kinds.items())]


def reference_pages() -> Iterator[tuple[str, str]]:
    """The pages of the packages, and one that lists them all."""
    overview = ["# API reference", "", "Every name can be imported from `moon`.", ""]
    for uri, names in package_pages():
        package = Path(uri).stem
        title = TITLES.get(package, package)
        links = ", ".join(f"[`{name.rpartition('.')[2]}`]({package}.md#{name})" for name in names)
        overview.append(f"- [{title}]({package}.md): {links}")
        body = "\n\n".join(f"::: {name}" for name in names)
        yield uri, f"# {title}\n\n{body}\n"
    yield "reference/index.md", "\n".join(overview) + "\n"


def package_pages() -> list[tuple[str, list[str]]]:
    """The page of each package, and its public names."""
    tree = ast.parse((ROOT / "src/moon/__init__.pyi").read_text())
    packages: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            package = node.module.removeprefix("moon.").partition(".")[0]
            packages.setdefault(package, []).extend(f"{node.module}.{alias.name}" for alias in node.names)
    by_title = sorted(packages, key=lambda package: TITLES.get(package, package))
    return [(f"reference/{package}.md", sorted(packages[package], key=str.lower)) for package in by_title]
