"""How pages of the repository become pages of the site. `make docs` builds all of it, and fails on a broken link."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks():
    spec = spec_from_file_location("site_hooks", ROOT / "docs" / "site" / "hooks.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def shown(hooks, uri, markdown):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), is_homepage=uri == "index.md", meta={})
    return hooks.on_page_markdown(markdown, page, None, None)


@pytest.mark.parametrize(
    ("uri", "markdown", "expected"),
    [
        ("index.md", "[use](docs/use.md#the-file)", "[use](use.md#the-file)"),
        ("use.md", "[example](../examples/plug_in.py)", "[example](files/examples/plug_in.py.page.md)"),
        ("methods/moon.md", "[results](../results.md)", "[results](../results.md)"),
        ("results/best.md", "[runs](../../results/cifar10-300/)", "runs (`results/cifar10-300/`)"),
        ("results.md", "[results](../results)", "`results/`"),
        ("use.md", "`a[0](b)` [site](https://example.org)", "`a[0](b)` [site](https://example.org)"),
        ("use.md", "```python\nx[0](../examples)\n```", "```python\nx[0](../examples)\n```"),
        ("files/CONTRIBUTING.md", "[design](docs/architecture.md)", "[design](../architecture.md)"),
    ],
)
def test_links_point_to_pages_of_the_site(hooks, uri, markdown, expected):
    assert shown(hooks, uri, markdown) == expected


def test_every_public_name_is_in_the_reference(hooks):
    import moon

    listed = {name.rpartition(".")[2] for _, names in hooks.package_pages() for name in names}
    assert listed == set(moon.__all__)


def test_every_card_is_in_the_navigation(hooks):
    first, *groups = hooks.method_nav()
    pages = [first, *(page for group in groups for pages in group.values() for page in pages)]
    assert sorted(pages) == sorted(f"methods/{path.name}" for path in (ROOT / "docs" / "methods").glob("*.md"))
