"""Errors that are the user's to mend."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """Wrong usage: one line that says what was wrong and what would be right. The command line exits with 2."""


class Stopped(Exception):  # noqa: N818
    """Training was stopped by the signal of this name; what was reached is kept."""


def nearest(word: str, words: Iterable[str]) -> str:
    """' Did you mean ...?' with the nearest of `words`, ignoring case; '' if none is near."""
    known = {w.lower(): w for w in words}
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f" Did you mean {known[near[0]]!r}?" if near else ""
