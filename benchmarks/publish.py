"""Where reports go."""

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def write(out: Path, markdown: str) -> None:
    """Writes `out`.md."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(f"{out.name}.md").write_text(markdown)


def publish(out: Path, markdown: str) -> None:
    """Writes it and shows it."""
    from specinfer.cli.show import console  # a GPU's machine may lack what the command line needs

    write(out, markdown)
    console.print(markdown, markup=False)
