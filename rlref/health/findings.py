"""Findings of checks on runs and environments: severity, onset, meaning, what to try, and the source."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

SEVERITIES = ("ERROR", "WARN", "INFO")
"""ERROR: a bug, or a run that is lost. WARN: unhealthy. INFO: worth knowing."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One finding of one check."""

    check: str
    """the check's name, such as `kl_high`"""
    severity: str
    title: str
    """a few words"""
    meaning: str
    """one sentence"""
    tries: str
    """what to try; '' if nothing is to be done"""
    source: str
    """where the check comes from; "rlref" if the threshold was calibrated here"""
    value: float | None = None
    """the measured value; with several seeds, the median of the affected ones"""
    threshold: float | None = None
    what: str = ""
    """what `value` is, such as `kl`"""
    onset: int | None = None
    """first affected update of any seed; None if there are no updates, as for an environment"""
    last: int | None = None
    """last affected update of any seed"""
    seeds: tuple[int, ...] = ()
    """the affected seeds; empty for an environment, or if all seeds share the value"""
    num_seeds: int = 0
    setting: int | None = None
    """which setting, of a run with batched settings"""
    follows: tuple["Finding", ...] = ()
    """findings that follow from this one"""

    @property
    def worst(self) -> str:
        """The severity of this finding or of one that follows from it, whichever is worse."""
        return min((self.severity, *(f.worst for f in self.follows)), key=SEVERITIES.index)


def exit_code(findings: Iterable[Finding]) -> int:
    """1 if any is an ERROR, else 0."""
    return int(any(f.worst == "ERROR" for f in findings))


def to_json(finding: Finding) -> dict[str, Any]:
    """A finding as plain dictionaries and lists."""
    return dataclasses.asdict(finding)


def where(finding: Finding) -> str:
    """Setting, updates and seeds of a finding, in words; '' for an environment."""
    parts = []
    if finding.setting is not None:
        parts.append(f"setting {finding.setting}")
    if finding.onset is not None:
        until = f" to {finding.last}" if finding.last is not None and finding.last != finding.onset else ""
        parts.append(f"update{'s' * bool(until)} {finding.onset}{until}")
    if finding.num_seeds > 1 and finding.seeds:
        parts.append(f"{len(finding.seeds)} of {finding.num_seeds} seeds ({ranges(finding.seeds)})")
    return ", ".join(parts)


def measured(finding: Finding) -> str:
    """The value beside its threshold, in words; '' without a value."""
    if finding.value is None:
        return ""
    beside = "" if finding.threshold is None else f", against {finding.threshold:.4g}"
    return f"{finding.what} {finding.value:.4g}{beside}".strip()


def headline(finding: Finding) -> str:
    """A finding in one line, without its severity."""
    parts = [part for part in (where(finding), measured(finding)) if part]
    return finding.title + (f" ({'; '.join(parts)})" if parts else "")


def sentence(finding: Finding) -> str:
    """A finding in one line with its severity, and the worst one that it explains, if that is more severe."""
    worse = [f for f in finding.follows if f.worst == finding.worst != finding.severity]
    explains = f"; it explains {worse[0].severity}: {worse[0].title}" if worse else ""
    return f"{finding.severity}: {headline(finding)}{explains}"


def lines(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Findings as lines of text, each with the severity that its colour should show."""
    out = []
    for f in findings:
        out.append((f.severity, f"{f.severity:<5}  {headline(f)}"))
        out.append(("", f"       {f.meaning}"))
        said = f" [{f.source}]" if f.source else ""
        if f.tries:
            out.append(("", f"       Try: {f.tries}{said}"))
        out += [("", f"       It explains: {x.severity} {headline(x)}") for x in f.follows]
    return out


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in few characters: '0-3, 7'."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
