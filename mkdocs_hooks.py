"""What the site needs besides the pages in docs/: README and CONTRIBUTING as pages, and examples in docstrings.

Pages link to files of the repository, which the site does not have; such links become plain text there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")
EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:.+\n?)*)+", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README and CONTRIBUTING, with links as seen from docs/."""
    for name, uri in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=LINK.sub(lambda link: _relocated(link, ""), text)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link to the pages made of README and CONTRIBUTING, and drop links to other files outside docs/."""
    if page.file.src_uri in PAGES.values():
        return markdown
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    return LINK.sub(lambda link: _relocated(link, folder), markdown)


def _relocated(link: re.Match[str], folder: str) -> str:
    """A link of a file in `folder` of the repository, as it has to be in the page of the same depth in the site."""
    target = posixpath.normpath(posixpath.join(folder, link["target"]))
    uri = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
    if uri is None:
        return link["text"]
    start = posixpath.relpath(folder, "docs") if folder else "."
    return f"{link['image']}[{link['text']}]({posixpath.relpath(uri, start)}{link['anchor'] or ''})"


class FencedExamples(Extension):
    """Shows doctests as code, which Markdown would read as quotes."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```\n", obj.docstring.value)
