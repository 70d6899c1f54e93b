"""Shape of the documentation: number and size of pages, and tables that match the code."""

import re
from dataclasses import fields

import pytest

from specinfer.llm import SamplingParams
from specinfer.llm.options import LLMOptions
from tests.docs import options
from tests.docs.blocks import ROOT
from tests.docs.tables import GENERATED, TABLES, dataclass_fields, stored

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
MAX_PAGES = 11
"""Ten hand-written pages, and the generated page of settings."""
MAX_LINES, MAX_LINES_OF_README = 400, 80
MAX_WORDS = 26_900
"""Maximum words of all pages, without generated tables."""
MAX_TERMS = 35
"""Maximum rows of the glossary."""


def test_pages_are_few_and_of_a_size() -> None:
    assert len(PAGES) <= MAX_PAGES
    assert sorted(DOCS.rglob("*.md")) == PAGES
    sizes = {page.name: len(GENERATED.sub("", page.read_text()).splitlines()) for page in PAGES}
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_LINES_OF_README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_begins_with_its_purpose(page: object) -> None:
    title, empty, purpose = page.read_text().splitlines()[:3]  # type: ignore[attr-defined]
    assert title.startswith("# ")
    assert not empty
    assert re.fullmatch(r"[A-Z[].{20,120}[.:]", purpose)


def test_the_readme_leads_to_all_pages() -> None:
    linked = set(re.findall(r"\]\(docs/(\w+\.md)", (ROOT / "README.md").read_text()))
    assert linked == {page.name for page in PAGES}


def test_pages_have_few_words() -> None:
    """Generated tables do not count."""
    words = {page.name: len(GENERATED.sub("", page.read_text()).split()) for page in PAGES}
    assert sum(words.values()) <= MAX_WORDS, words


def test_the_table_of_a_gpu_names_tests() -> None:
    _, _, table = (DOCS / "models.md").read_text().partition("## On a GPU\n")
    named = {name for row in table.splitlines() for name in re.findall(r"`([\w/]+\.py)`", row)}
    assert len(named) > 8
    assert [name for name in named if not (ROOT / "tests/unit/model" / name).exists()] == []


def test_the_glossary_is_short() -> None:
    _, _, glossary = (DOCS / "architecture.md").read_text().partition("## Words\n")
    terms = re.findall(r"^\| (?!word|---)", glossary, re.MULTILINE)
    assert 20 < len(terms) <= MAX_TERMS


@pytest.mark.parametrize(("page", "name"), TABLES, ids=lambda text: text)
def test_tables_are_what_the_code_says(page: str, name: str) -> None:
    """`python -m tests.docs.tables` writes them."""
    table = stored(page)[name]
    assert table == TABLES[page, name]()
    assert [row for row in table.splitlines() if row.endswith("|  |")] == [], (
        "a meaning is missing in the code"
    )


def test_tables_have_names_defaults_and_meanings() -> None:
    assert "| `n` | `1` | Answers to each prompt; with a seed, answer i has seed + i. |" in dataclass_fields(
        SamplingParams
    )


def test_the_table_of_options_shows_where_each_exists() -> None:
    table = stored("settings.md")["options"]
    assert "\n| `--max-batch` | serve, up | `max_num_seqs` | gateway | `16` | " in table
    assert "\n| `--draft` | serve, up | `draft` | verifier | `auto` (serve), `none` (verifier) | " in table
    assert "\n| `--speculator` | up | `speculators` |  |  | " in table
    assert "\n| `--log-level` | serve |  | all | `info` | " in table


def test_each_argument_of_llm_is_the_option_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [row.llm for row in options.rows() if row.llm]
    assert sorted(shown) == sorted(
        {"model", "draft", "speculators", *(field.name for field in fields(LLMOptions))}
    )
    monkeypatch.setattr(options, "_LLM_ARGUMENTS", ("temperature_of_the_room",))
    with pytest.raises(KeyError):
        options.rows()
