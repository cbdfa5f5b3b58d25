"""The smallest change of a copy without which a check passes: what a failure comes from."""

import ast
import builtins
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from probes.changes import Changed, Changes, Hunk, in_lines, nodes

ALONE = 12  # changes that are tried one by one, before delta debugging
MANY = 4  # changes that are listed one by one
QUICK_SHARE = 0.4  # of the time, for what a quicker check says
Unit = tuple[Hunk, ...]  # changes that are undone together: at first those of a function, class or constant


class Undo(NamedTuple):
    """The smallest change without which a check passes."""

    hunks: tuple[Hunk, ...]
    names: tuple[str, ...]
    """of the functions, classes or constants that they are in"""
    unused: tuple[Changed, ...] = ()
    """new functions, classes and constants that nothing uses then"""

    @property
    def lines(self) -> list[tuple[int, int]]:
        """First and last line of each change in the file, from 1; of what is only left out, the line before, twice."""
        return [(h.start + 1, h.stop) if h.stop > h.start else (h.start, h.start) for h in self.hunks]

    def __str__(self) -> str:
        """Such as "undo line 388, in `loss`"."""
        own = ", ".join(f"`{name}`" for name in dict.fromkeys(self.names) if name)
        parts = []
        for hunk, (first, last) in zip(self.hunks, self.lines, strict=True):
            gone = "put back what stood after " if hunk.stop == hunk.start else ""
            parts.append(gone + in_lines(first, last))
        begin = "" if parts[0].startswith("put") else "undo "
        said = f"{begin}{' and '.join(parts)}{f', in {own}' if own else ''}"
        if len(parts) > MANY:
            said = f"undo the {len(parts)} changes in {in_lines(self.lines[0][0], self.lines[-1][1])}, of {own}"
        left = " and ".join(f"`{x.name}` ({in_lines(x.first, x.last)})" for x in self.unused)
        return f"{said}, and no more use {left}" if left else said


def smallest(
    all_: Changes,
    passes: Callable[[str], bool],
    suspects: Iterable[str],
    seconds: float,
    quick: Callable[[str], bool] | None = None,
) -> Undo | None:
    """The fewest changes, then the fewest lines, without which `passes(text)`.

    From the changes of whole functions to lines (hierarchical delta debugging, Misherghi & Su 2006), those in functions
    named in `suspects` before others, and settings last. With `quick`, another check that fails and takes less time,
    what is found by that one is tried before. None where nothing was found within `seconds`.
    """
    began, suspects = time.monotonic(), set(suspects)

    def name_of(hunk: Hunk) -> str:
        return all_.name_at(hunk.start + 1) or all_.name_at(hunk.start)

    def order(hunk: Hunk) -> tuple[bool, bool, int]:
        name = name_of(hunk)
        return name not in suspects, name in ("", "Config"), hunk.start

    by_name: dict[str, tuple[Hunk, ...]] = {}
    for hunk in sorted(all_.hunks, key=order):
        by_name[name_of(hunk)] = (*by_name.get(name_of(hunk), ()), hunk)
    units = [*by_name.values()]
    helps = remembered(all_, passes, began + seconds)
    found: list[Hunk] = []
    if quick is not None:
        guess = last(search(units, remembered(all_, quick, began + QUICK_SHARE * seconds)))
        found = last(search([tuple(guess)], helps)) if guess else []
    found = sorted(found or last(search(units, helps)))
    return Undo(tuple(found), tuple(map(name_of, found)), unused(all_, found)) if found else None


def remembered(all_: Changes, passes: Callable[[str], bool], until: float) -> Callable[[Iterable[Hunk]], bool]:
    """Whether the check passes without some changes, each asked once; raises TimeoutError after `until`."""
    known: dict[frozenset[Hunk], bool] = {}
    own = unbound(all_.text)

    def helps(hunks: Iterable[Hunk]) -> bool:
        key = frozenset(hunks)
        if key not in known:
            if time.monotonic() > until:
                raise TimeoutError
            text = all_.undone(key)
            known[key] = unbound(text) <= own and passes(text)
        return known[key]

    return helps


def unbound(text: str) -> set[str]:
    """Names that a file uses and binds nowhere, as half of a change mostly does; "" among them if it does not parse."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {""}
    used, bound = set[str](), {*dir(builtins), "__file__"}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                bound.add(name)
            case ast.alias(name=name, asname=as_name):
                bound.add((as_name or name).split(".")[0])
    return set() if "*" in bound else used - bound


def last(found: Iterable[list[Hunk]]) -> list[Hunk]:
    """The last that comes before the time is over; [] if none does."""
    best: list[Hunk] = []
    try:
        for best in found:  # noqa: B007
            pass
    except TimeoutError:
        pass
    return best


def search(units: Sequence[Unit], helps: Callable[[Iterable[Hunk]], bool]) -> Iterator[list[Hunk]]:
    """Changes that help, ever fewer of them: of the units, then of the hunks in these, then of a single one's lines."""
    found: list[Hunk] = []
    for found in fewest(units, helps):
        yield found
    if len(whole := found) > 1:
        for found in fewest([(hunk,) for hunk in whole], helps):
            yield found
    if len(found) == 1 and len(pieces := lines_of(found[0])) > 1:
        yield from fewest([(piece,) for piece in pieces], helps)


def fewest(units: Sequence[Unit], helps: Callable[[Iterable[Hunk]], bool]) -> Iterator[list[Hunk]]:
    """The changes of one unit that helps alone; else, of all of them, ever fewer, to those of which none can be kept.

    The second is ddmin of Zeller & Hildebrandt (2002), over what is undone.
    """

    def all_of(units: Iterable[Unit]) -> list[Hunk]:
        return [hunk for unit in units for hunk in unit]

    kept, parts = list(units), 2
    if (alone := next((x for x in units[:ALONE] if helps(x)), None)) is not None:
        yield [*alone]
        return
    if len(units) < 2 or not helps(all_of(units)):
        return
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        rests = [[x for x in kept if x not in chunk] for chunk in chunks] if len(chunks) > 2 else []
        smaller = next((x for x in (*chunks, *rests) if helps(all_of(x))), None)
        if smaller is not None:
            kept, parts = smaller, 2
            yield all_of(kept)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    yield all_of(kept)


def lines_of(hunk: Hunk) -> list[Hunk]:
    """A change line by line, where as many lines stand for as many."""
    if hunk.stop - hunk.start != len(hunk.old):
        return [hunk]
    return [Hunk(hunk.start + i, hunk.start + i + 1, (line,)) for i, line in enumerate(hunk.old)]


def unused(all_: Changes, hunks: Iterable[Hunk]) -> tuple[Changed, ...]:
    """What is new in the file, is used there, and is not without these of its changes."""
    new = {x.name: x for x in all_.changed if x.what.startswith("new")}
    undone = all_.undone(hunks)
    before, after, there = used(all_.text, new), used(undone, new), nodes(undone)
    return tuple(x for name, x in new.items() if name in before and name in there and name not in after)


def used(text: str, new: Iterable[str]) -> set[str]:
    """Names out of `new` that a file uses, other than in definitions of theirs that nothing uses."""
    mentions = {name: {x.id for x in ast.walk(node) if isinstance(x, ast.Name)} for name, node in nodes(text).items()}
    reached: set[str] = set()
    todo = mentions.keys() - {*new}
    while todo:
        reached |= todo
        todo = {x for name in todo for x in mentions[name] & mentions.keys()} - reached
    return reached & {*new}
