#!/usr/bin/env python3
"""Pages and sections that are named exist: prints each link within a Markdown file, and each mention
of a page of docs/ or bench/ in any text, whose file or section is missing. Run by check_style.sh.
Exit code 1 where anything is found."""

import functools
import pathlib
import re
import sys

FOLDERS = [".ci", "bench", "cmake", "core", "datasets", "docs", "examples", "models", "scripts",
           "tests", "tokenizers", "tools"]
TEXTS = {".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".sh", ".txt", ".cmake", ".md", ".json"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"(?<![\w/.-])(?:\.\./)*((?:bench|docs)/[\w./-]*\.md(?:#[\w-]+)?)")


def texts():
    yield from pathlib.Path(".").glob("*.md")
    for folder in FOLDERS:
        yield from (p for p in pathlib.Path(folder).rglob("*") if p.suffix in TEXTS and p.is_file())


@functools.cache
def sections(path):
    """The anchors of a page's headings, as GitHub makes them: in lower case, without punctuation,
    spaces as hyphens; the second of the same name ends in -1."""
    anchors, code = [], False
    for line in path.read_text().splitlines():
        code ^= line.startswith("```")
        heading = re.match(r"#+ +(.*?) *$", line)
        if not heading or code:
            continue
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1])
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        before = sum(re.fullmatch(re.escape(anchor) + r"(-\d+)?", a) is not None for a in anchors)
        anchors.append(f"{anchor}-{before}" if before else anchor)
    return anchors


def missing(folder, target):
    """What of `target`, seen from `folder`, does not exist; None: all of it does."""
    name, _, section = target.partition("#")
    path = folder / name
    if not path.exists():
        return name
    if section and path.suffix == ".md" and section not in sections(path):
        return target
    return None


def main():
    findings = set()
    for path in texts():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            named = [(pathlib.Path("."), t) for t in MENTION.findall(line)]
            if path.suffix == ".md":
                links = (t for t in LINK.findall(line) if not re.match(r"[a-z]+:", t))
                named += [(path.parent, path.name + t if t.startswith("#") else t) for t in links]
            for folder, target in named:
                if what := missing(folder, target):
                    findings.add(f"{path}:{number}: there is no {what}")
    print("\n".join(sorted(findings)), end="\n" if findings else "")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
