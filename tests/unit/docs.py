"""What the documentation holds: fenced blocks, the commands in them, and its links."""

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
"""All that is written for users. Results and decisions are kept as they were, with the commands of their day."""
LANGUAGES = ("sh", "console", "text", "yaml", "ini", "python")
PROMPT = "$ "
"""Before a command in a `console` block; its other lines are what was printed."""

_FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


@dataclass(frozen=True)
class Fence:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True)
class Command:
    fence: Fence
    words: tuple[str, ...]
    """Without assignments before it, what is done with its output, and the folder of an executable in .venv/bin."""

    def __str__(self) -> str:
        return f"{self.fence}: {shlex.join(self.words)}"


def fences(page: Path) -> list[Fence]:
    text = page.read_text(encoding="utf-8")
    return [
        Fence(page, text.count("\n", 0, found.start()) + 1, found["language"], found["text"])
        for found in _FENCE.finditer(text)
    ]


def shell_text(fence: Fence) -> str:
    """What a reader would type."""
    if fence.language == "sh":
        return fence.text
    lines = [line.removeprefix(PROMPT) for line in fence.text.splitlines() if line.startswith(PROMPT)]
    return "\n".join(lines) if fence.language == "console" else ""


def commands(fence: Fence) -> Iterator[Command]:
    for line in shell_text(fence).replace("\\\n", " ").splitlines():
        words = _without_assignments(shlex.split(line, comments=True))
        if words:
            yield Command(fence, tuple(itertools.takewhile(lambda word: word not in (">", "|"), words)))


def spans(page: Path) -> list[str]:
    """Inline code."""
    return _SPAN.findall(prose(page))


def links(page: Path) -> list[tuple[Path, str | None]]:
    """Pages and files of the repository that a page links to, with the anchor."""
    found = [(target, anchor or None) for target, anchor in _LINK.findall(prose(page)) if "://" not in target]
    return [((page.parent / target).resolve() if target else page, anchor) for target, anchor in found]


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(page: Path) -> str:
    """All but its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def _without_assignments(words: Sequence[str]) -> list[str]:
    rest = list(words)
    while rest and (rest[0] == "export" or _ASSIGNMENT.fullmatch(rest[0])):
        is_open = "$(" in rest[0] and ")" not in rest[0]
        rest = rest[next(i for i, word in enumerate(rest) if word.endswith(")")) + 1 if is_open else 1 :]
    return [rest[0].removeprefix(".venv/bin/"), *rest[1:]] if rest else []
