"""The tables of speed in the README and in docs/performance.md are what the committed reports say."""

from pathlib import Path

from benchmarks.headline import (
    BATCHES,
    MACHINES,
    PEERS,
    TEMPERATURES,
    drafts_table,
    peers_table,
    report,
    table,
)

ROOT = Path(__file__).parents[3]
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"


def test_the_pages_have_the_tables_of_the_reports() -> None:
    wanted = [(README, peers_table()), (PERFORMANCE, drafts_table()), (PERFORMANCE, table())]
    for page, text in wanted:
        assert f"\n\n{text}\n\n" in page.read_text(), (
            f"{page.name}: run `python -m benchmarks.headline` and paste what it prints"
        )


def test_the_table_has_every_machine_temperature_and_peer() -> None:
    first = [row.split("|")[1].strip() for row in table().splitlines()[2:]]
    systems = [f"{machine}, {label}: plain → tree" for machine in MACHINES for label in TEMPERATURES]
    compared = [machine for machine, (_, engine) in MACHINES.items() if engine]
    names = ("our engine alone, plain", " / ".join(PEERS))
    engines = [f"{machine}, greedy: {name}" for machine in compared for name in names]
    assert sorted(first) == sorted(systems + engines)


def test_figures_are_those_of_the_report() -> None:
    figures = report("end-to-end-zen4")["services"]["greedy"]["tree"][BATCHES[0]]
    (row,) = [row for row in table().splitlines() if row.startswith("| Zen 4, greedy: plain")]
    assert f"{figures['tokens_per_second']:.0f} ({figures['gain']:.2f}x ±" in row
