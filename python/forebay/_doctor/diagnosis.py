"""What the doctor has to say, for people and for machines."""

import json
import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["fine", "note", "problem", "unknown"]
_WIDTH = 118


@dataclass(frozen=True)
class Verdict:
    """What one check found."""

    check: str
    """`load`, `sendable`, `handles`, `errors`, `length`, `determinism`, `descriptors`, `memory`, `weight`, `time`,
    `gil`, `workers`."""
    status: Status
    """`problem`: change something; `note`: know about it; `fine`; `unknown`: it could not be found out."""
    text: str
    change: str | None = None
    """What to change."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The numbers behind it."""


@dataclass(frozen=True)
class Diagnosis:
    """The verdicts on a dataset. `print(diagnosis)` is for people, `diagnosis.json()` for machines."""

    name: str
    verdicts: list[Verdict]
    seconds: float

    @property
    def problems(self) -> list[Verdict]:
        """What should be changed."""
        return [verdict for verdict in self.verdicts if verdict.status == "problem"]

    def find(self, check: str) -> list[Verdict]:
        """The verdicts of one check."""
        return [verdict for verdict in self.verdicts if verdict.check == check]

    def json(self) -> str:
        """One JSON object, with everything."""
        verdicts = [asdict(verdict) for verdict in self.verdicts]
        found = {"name": self.name, "seconds": round(self.seconds, 2), "problems": len(self.problems)}
        return json.dumps(found | {"verdicts": verdicts}, indent=2, default=str)

    def __str__(self) -> str:
        counts = {status: sum(v.status == status for v in self.verdicts) for status in ("problem", "note", "unknown")}
        lines = [f"{self.name}, examined for {self.seconds:.1f} s", ""]
        for verdict in self.verdicts:
            lines += _paragraph(verdict)
        told = [f"{count} {name}{'s' if count != 1 else ''}" for name, count in counts.items() if count]
        return "\n".join([*lines, "", ", ".join(told) or "no problems found"])


def _paragraph(verdict: Verdict) -> list[str]:
    head = f"  {verdict.status:<8} {verdict.check:<12} "
    indent = " " * len(head)
    lines = _wrap(verdict.text, indent)
    if verdict.change:
        lines += _wrap(f"→ {verdict.change}", indent)
    return [head + lines[0].removeprefix(indent), *lines[1:]]


def _wrap(text: str, indent: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        if line.startswith("      "):
            lines.append(indent + line[2:])  # code keeps its form
        else:
            lines += textwrap.wrap(
                line, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
    return lines or [indent]
