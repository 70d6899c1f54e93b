"""Write and print reports."""

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def write(out: Path, markdown: str) -> None:
    """Write `out`.md."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(f"{out.name}.md").write_text(markdown)


def publish(out: Path, markdown: str) -> None:
    """Write `out`.md and print it."""
    from specinfer.cli.show import console  # a GPU machine may lack rich

    write(out, markdown)
    console.print(markdown, markup=False)
