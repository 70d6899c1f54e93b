"""The shape of a tree before it has tokens: expansion vectors and limits."""

from dataclasses import dataclass

from specinfer.errors import SettingError


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of one tree."""

    nodes: int
    """Most nodes besides the root; 0 means no tree."""
    depth: int
    """Depth of the deepest node; the root has depth 0."""
    width: int | None = None
    """Most children of a node; 1 is sequence speculation, None is no limit."""
    min_path_probability: float = 0.0
    """Nodes whose path is less probable will hardly be verified, so a tree need not go on below them."""

    @property
    def empty(self) -> bool:
        """True if nothing may be drafted."""
        return self.nodes <= 0 or self.depth <= 0


@dataclass(frozen=True, slots=True)
class ExpansionVector:
    """The paper's static tree <k1, ..., km>: at step i every leaf expands its top k_i tokens."""

    widths: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "ExpansionVector":
        """Parse a vector such as "1,1,3,1".

        Raises:
            SettingError: if it is not a list of positive integers.
        """
        parts = [part.strip() for part in text.strip("<> ").split(",")]
        if not all(part.isdigit() and int(part) > 0 for part in parts):
            raise SettingError("expansion", text, "must be positive integers such as 1,1,3,1")
        return cls(tuple(map(int, parts)))

    @property
    def nodes(self) -> int:
        """Nodes of the full tree besides the root."""
        total, leaves = 0, 1
        for width in self.widths:
            leaves *= width
            total += leaves
        return total
