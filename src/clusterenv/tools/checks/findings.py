"""What a check found, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """One check's result: a line for people."""

    level: str
    """``ok``, ``warning`` (a run works, but not as it could) or ``problem`` (it does not)."""
    what: str
    to_do: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}" + (f" -> {self.to_do}" if self.to_do else "")


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(OK, what)


def warning(what: str, to_do: str) -> Finding:
    """A run works, but not as it could."""
    return Finding(WARNING, what, to_do)


def problem(what: str, to_do: str) -> Finding:
    """A run would fail."""
    return Finding(PROBLEM, what, to_do)


def has_problems(findings: Sequence[Finding]) -> bool:
    """Whether a run would fail."""
    return any(finding.level == PROBLEM for finding in findings)


def verdict(findings: Sequence[Finding]) -> str:
    """The last line of the report."""
    problems = sum(finding.level == PROBLEM for finding in findings)
    warnings = sum(finding.level == WARNING for finding in findings)
    if not problems and not warnings:
        return "all is well"
    return f"{problems} problem(s), {warnings} warning(s)"


def size(num_bytes: float) -> str:
    """``1536`` → ``1.5 KB``."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} TB"
