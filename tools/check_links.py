#!/usr/bin/env python3
"""Checks that every relative link of the project's Markdown pages names a file or folder, and its #part a heading."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: pathlib.Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: pathlib.Path) -> list[str]:
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, part = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (part and target.suffix == ".md" and part not in anchors(target)):
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    return broken


def main() -> int:
    skip = {"build", ".git"}
    pages = [page for page in ROOT.rglob("*.md") if not skip & set(page.relative_to(ROOT).parts)
             and not any(part.startswith((".venv", "build-")) for part in page.relative_to(ROOT).parts)]
    broken = [line for page in sorted(pages) for line in broken_links(page)]
    print("\n".join(broken) if broken else f"{len(pages)} pages, every link leads somewhere")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
