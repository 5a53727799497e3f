"""Hooks for MkDocs: adds the generated pages, and rewrites links that leave docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import api_page  # noqa: E402
import check_pages  # noqa: E402
import command_page  # noqa: E402
import fences  # noqa: E402
import layers  # noqa: E402
import outside  # noqa: E402

FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="https?:"""
    r"""|<link\b[^>]*rel="(?:stylesheet|preconnect|preload)"[^>]*href="https?:"""
)
"""What a browser would get from elsewhere."""
CHECKS = "checks/"
"""The entry of the navigation that the families of checks take the place of."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every check has its place in the navigation."""
    config.nav = [_with_checks(item) for item in config.nav or []]
    return config


def _with_checks(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    [(title, inside)] = item.items()
    if inside == CHECKS:
        families = [
            {
                f"{family[0].upper()}{family[1:]}": [
                    {f"{check.code} {check.name}": check_pages.path_of(check)} for check in members
                ]
            }
            for family, members in check_pages.families().items()
        ]
        return {title: ["checks/index.md", *families]}
    if isinstance(inside, list):
        return {title: [_with_checks(one) for one in inside]}
    return item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Generated pages, and what pages link to outside of docs/."""
    made = {"cli.md": command_page.page(), "api.md": api_page.page()}
    made["checks/index.md"] = check_pages.index()
    for members in check_pages.families().values():
        made |= {check_pages.path_of(check): check_pages.page(check) for check in members}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    brought: set[str] = set()
    while new := _linked(files) - brought:  # what is brought along has links of its own
        for path in sorted(new):
            _bring(path, files, config)
        brought |= new
    return files


def _linked(files: Files) -> set[str]:
    return {
        path
        for file in files.documentation_pages()
        for path in outside.targets(file.content_string, file.src_uri)
    }


def _bring(path: str, files: Files, config: MkDocsConfig) -> None:
    place = outside.place_of(path)
    if files.get_file_from_path(place) is not None:
        return
    if (outside.ROOT / path).is_dir():
        if outside.readme_of(path) is None:
            files.append(File.generated(config, place, content=outside.listing(path)))
        for name in outside.files(path):
            _bring(f"{path}/{name}", files, config)
    else:
        source = str(outside.ROOT / path)
        files.append(File.generated(config, place, abs_src_path=source))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Info strings as the renderer knows them, links as the site has them, the drawn layers."""
    # Records for contributors are not answers to a user's question.
    for_contributors = page.file.src_uri.startswith(("decisions/", "mapping.md", "first-use.md"))
    if for_contributors or page.file.src_uri.startswith(f"{outside.PLACE}/"):
        page.meta["search"] = {"exclude": True}
    markdown = layers.drawn(markdown)
    return outside.rewritten(fences.for_display(markdown), page.file.src_uri)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Nothing comes from elsewhere: the site is read on machines without internet."""
    found = FETCHED.search(output)
    if found is not None:
        raise PluginError(f"{page.file.src_uri} would fetch from elsewhere: {found[0]}…")
    return output
