"""Paths, names and cited sections exist, the picture of the rooms shows the import contracts, and pages use the words of the
glossary."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_tidy import GENERATED, PACKAGE, PROJECT, PROSE, REPOSITORY, SCRIPTS, SOURCES, modules_of

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "peers").glob("*.md")])
GENERATED_PAGE = REPOSITORY / "docs" / "errors.md"
"""Its words are those of `error_codes.py`."""
HISTORY = REPOSITORY / "CHANGELOG.md"
"""May name what is gone."""
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.(?:py|md|yaml|toml|sh|proto|svg|js|gz)|(?!\d)[\w.-]+(?:/[\w.-]+)+/?|[\w-]+/")
LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
"""The page, empty where it is the same one, and the heading, empty where it is the whole page."""
NAME = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)*(?:\(\))?")
IN_FILE = re.compile(r"`(\w+)` in `([\w/]+\.py)`|`([\w/]+\.py)` \(`(\w+)`\)")
"""A name and its file: "`STEPS` in `core/averaging/outer_round.py`", or the other way round in the glossary."""
OF_A_RUN = {"control/endpoint.json", "my-peer/identity.key"}
"""Files of a working directory, not of the tree."""
MADE_BY_THE_READER = {"mine.yaml"}
OLD_WORDS = re.compile(
    r"\b(strays?|errand|seating|farewells?|onlookers?|heirs?|recollect\w*|governor|seconded|neighbourhood|pretence|unsent"
    r"|resigns?|left_out|hearsay|calm rounds|goodbye)\b",
    re.IGNORECASE,
)
RELATIVE_SUBJECT = re.compile(r"(?:^|[.:;]\s+|\n\n|\n- |\| )(?:\*\*)?((?:Who|Whoever|Whom|What)\b[^.?|]*[.|])")
"""A sentence that opens with a relative pronoun and does not end with a question mark."""
MATHEMATICS = REPOSITORY / "docs" / "mathematics.md"
_SECTION = r"\d+(?:\.\d+)?(?: [A-Z]\b)?"
CITED = re.compile(rf"mathematics\.md`?, ({_SECTION}(?:(?:, | and ){_SECTION})*)")
"""The sections that a text cites, as in "(docs/mathematics.md, 3, 4.1 and 12 A)"."""
UNWRAPPED = re.compile(r"\s*\n\s*(?:# )?")
OF_NO_PAGE = re.compile(r"\b(?:methods?|design) (?:sections?\b|\d+(?:\.\d)?)", re.IGNORECASE)
"""Citations of documents that the repository does not have."""
PICTURE = re.compile(r"<!-- picture of the contracts: .*? -->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def quoted_in(page: Path) -> list[str]:
    return QUOTED.findall(FENCED.sub("", page.read_text()))


def paths_in(page: Path) -> Iterator[str]:
    yield from (word for word in quoted_in(page) if PATH.fullmatch(word) and word not in OF_A_RUN | MADE_BY_THE_READER)


def headings_of(page: Path) -> set[str]:
    """As the end of a link names them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(path: str, page: Path) -> bool:
    """From the repository, the package or the folder of the page; a bare file name anywhere in the repository."""
    if any((root / path).exists() for root in (REPOSITORY, PACKAGE, page.parent)):
        return True
    roots = [PACKAGE, *(REPOSITORY / name for name in ("tests", "benchmarks", "configs", "examples", "peers", "docs", "proto"))]
    return "/" not in path and any(True for root in roots for _ in root.rglob(path))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_path_on_a_page_exists(page: Path) -> None:
    missing = [path for path in paths_in(page) if not is_there(path, page)]
    assert not missing


def test_a_path_that_is_gone_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("See `core/apportion.py`, `core/model/scalars.py`, `swarm/mesh/`, `left_out.py` and `scalars.py`.\n")
    assert [path for path in paths_in(page) if not is_there(path, page)] == ["core/apportion.py", "swarm/mesh/", "left_out.py"]


def lost_links(page: Path) -> list[tuple[str, str]]:
    """The links of the page that lead to no file, or to no heading of it."""
    found = [(path, heading, page.parent / path if path else page) for path, heading in LINK.findall(page.read_text())]
    return [(path, heading) for path, heading, to in found if not (to.exists() and (not heading or heading in headings_of(to)))]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_link_on_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert not lost_links(page)


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A bold, new one\n[a](page.md#a-bold-new-one) [b](#b) [c](page.md) [d](gone.md) [e](page.md#gone)\n")
    assert lost_links(page) == [("", "b"), ("gone.md", ""), ("page.md", "gone")]


@pytest.mark.parametrize("page", [page for page in PAGES if page != HISTORY], ids=shown)
def test_every_name_of_the_code_on_a_page_exists(page: Path) -> None:
    """Words in backticks that look like code: with an underscore, or a capital after a small letter."""
    others = [path for suffix in ("yaml", "proto", "toml", "sh", "js") for path in REPOSITORY.glob(f"[!.]*/**/*.{suffix}")]
    sources = [*SOURCES, *SCRIPTS, *GENERATED.glob("*.py"), *others, REPOSITORY / "pyproject.toml"]
    known = {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    names = [word for word in quoted_in(page) if NAME.fullmatch(word)]
    parts = {part for name in names for part in re.findall(r"\w+", name) if "_" in part or re.search(r"[a-z][A-Z]", part)}
    assert not parts - known


def test_a_name_is_in_the_file_that_a_page_states() -> None:
    stated = [found.groups("") for page in PAGES for found in IN_FILE.finditer(page.read_text())]
    pairs = {(name or second_name, path or second_path) for name, path, second_path, second_name in stated}
    assert len(pairs) > 5
    assert not [(name, path) for name, path in pairs if not re.search(rf"\b{name}\b", (PACKAGE / path).read_text())]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in (GENERATED_PAGE, HISTORY)], ids=shown)
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    text = FENCED.sub("", page.read_text())
    assert not OLD_WORDS.findall(re.sub(r"`[^`\n]+`", "", text))


@pytest.mark.parametrize("page", [page for page in PAGES if page != GENERATED_PAGE], ids=shown)
def test_no_sentence_begins_with_a_free_relative(page: Path) -> None:
    """ "Who has voted ...", "What is left ..." as subjects; questions and headings may."""
    text = re.sub(r"^#.*$", "", FENCED.sub("", page.read_text()), flags=re.MULTILINE)
    assert not RELATIVE_SUBJECT.findall(text)


def test_a_free_relative_is_noticed_and_a_question_is_not() -> None:
    page = "Who decides? It ended. What is left\nis work. A host that votes, votes once.\n\nWhoever votes abstains.\n"
    assert RELATIVE_SUBJECT.findall(page) == ["What is left\nis work.", "Whoever votes abstains."]


def sections_of_mathematics() -> set[str]:
    page = MATHEMATICS.read_text()
    numbered = re.findall(r"^##+ (\d+(?:\.\d+)?) ", page, re.MULTILINE)
    return {*numbered, *(f"12 {letter}" for letter in re.findall(r"^- \*\*([A-Z])\*\*", page, re.MULTILINE))}


def lost_citations(text: str) -> list[str]:
    """The sections that the text cites and no page has."""
    line, known = UNWRAPPED.sub(" ", text), sections_of_mathematics()
    cited = [section for sections in CITED.findall(line) for section in re.findall(_SECTION, sections)]
    return [section for section in cited if section not in known] + OF_NO_PAGE.findall(line)


def test_sections_that_code_and_pages_cite_exist() -> None:
    found = {shown(path): lost_citations(path.read_text()) for path in [*SOURCES, *SCRIPTS, *PROSE]}
    assert not {path: lost for path, lost in found.items() if lost}


def test_a_citation_of_a_section_that_is_gone_is_noticed() -> None:
    def cited(sections: str) -> list[str]:
        return lost_citations(f"Noise (docs/mathematics.md, {sections}), averaged over 7 steps.")

    assert cited("4.2") == cited("3, 4.1\n    and 12 A") == cited("4.3\n# and 4.4") == []
    assert cited("4.9") == ["4.9"] and cited("4.1, 13\n    and 12 Z") == ["13", "12 Z"]
    what, part = "method", "section"
    old = lost_citations(f"See {what}\n    {part}s 3.3 and 4, {what} 4.2 and design\n{part} 4.")
    assert old == [f"{what} {part}s", f"{what} 4.2", f"design {part}"]


def picture() -> dict[str, list[frozenset[str]]]:
    """Layers from top to bottom, by the package that holds them, as `docs/architecture.md` draws them."""
    found = PICTURE.search((REPOSITORY / "docs" / "architecture.md").read_text())
    assert found is not None
    drawn: dict[str, list[frozenset[str]]] = {}
    for line in found[1].splitlines():
        words = re.findall(r"[a-z_]\w[\w.]*", line.partition("#")[0])
        if words and not line.startswith(" "):
            drawn[words[0]] = []
        elif words:
            list(drawn.values())[-1].append(frozenset(words))
    return drawn


def test_the_picture_of_the_rooms_shows_the_contracts() -> None:
    contracts = {
        contract["containers"][0]: [frozenset(re.findall(r"\w+", layer)) for layer in contract["layers"]]
        for contract in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    }
    assert picture() == contracts
    assert contracts.keys() >= {"adloco_p2p", "adloco_p2p.core"} and PROJECT["project"]["name"] == "adloco-peer"


def test_the_arrows_between_rooms_of_the_core_are_those_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    told = set(re.findall(r"`(\w+) -> (\w+)`", page))
    core = PACKAGE / "core"
    imported = {
        (path.parent.name, module.split(".")[2])
        for path in core.glob("*/*.py")
        for module in modules_of(path)
        if module.startswith("adloco_p2p.core.")
    }
    assert told == {(source, target) for source, target in imported if target not in (source, "model")}
