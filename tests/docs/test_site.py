"""The documentation site: it builds without warnings and works offline."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)")
# The URLs that a browser loads with a page.
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)")


def build(site: Path, *, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does: without `-q`, because MkDocs then counts no warnings."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", site],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """A broken link or anchor, or a page outside of the navigation, must fail here first."""
    built = build(tmp_path / "site")

    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 80
    loaded = {url for text in pages.values() for url in LOADED.findall(text)}
    assert loaded == set(), "a page loads from another host"


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("[away](gone.md)", "gone.md"),
        ("[away](#gone)", "#gone"),
        ("[away](other.md#gone)", "#gone"),
        ("", 'not included in the "nav"'),
    ],
    ids=["page", "anchor", "anchor of another page", "navigation"],
)
def test_a_fault_of_a_page_fails_the_build(page: str, fault: str, tmp_path: Path) -> None:
    """The canary: the settings of the site must refuse each kind of broken link."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "index.md").write_text(f"# Page\n\n{page}\n")
    (folder / "other.md").write_text("# Other\n")
    pages = "[index.md, other.md]" if page else "[index.md]"
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {folder}\nnav: {pages}\n"
        "hooks: []\nplugins: []\ntheme: {name: mkdocs}\n"
    )
    built = build(tmp_path / "site", config=config)

    assert built.returncode == 1
    assert fault in built.stdout + built.stderr


def test_links_outside_of_the_site_lead_to_a_file() -> None:
    """Each link of README and of other pages in the repository leads to a file."""
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*ROOT.glob("*.md"), *(ROOT / "tests").rglob("*.md")]
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]

    assert broken == []
