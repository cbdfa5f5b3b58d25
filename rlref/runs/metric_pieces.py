"""Metrics as they come, in pieces of some rows and some updates: put together, and read from a run's folder."""

from pathlib import Path

import numpy as np

from rlref.errors import UsageError, in_a_line

Pieces = dict[tuple[int, int], dict[str, np.ndarray]]  # (first row, first update) -> metrics [rows, updates]


def extent(pieces: Pieces) -> tuple[int, int]:
    """How many rows and updates `pieces` reach to."""
    ends = [np.add(at, next(iter(piece.values())).shape) for at, piece in pieces.items()]
    rows, updates = np.max(ends, axis=0).tolist()
    return rows, updates


def assembled(pieces: Pieces, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """All `pieces` as arrays of `shape`: its last axis is updates, the others rows. NaN where there is no piece."""
    rows, updates = int(np.prod(shape[:-1])), shape[-1]
    names = dict.fromkeys(name for piece in pieces.values() for name in piece)
    joined = {name: np.full((rows, updates), np.nan, np.float32) for name in names}
    for (row, update), piece in pieces.items():
        for name, x in piece.items():
            joined[name][row : row + x.shape[0], update : update + x.shape[1]] = x
    return {name: x.reshape(shape) for name, x in joined.items()}


def place_of(file: Path) -> tuple[int, int]:
    """First row and first update of a file of metrics, from its name."""
    row, update = file.stem.removeprefix("row").split("-update")
    try:
        return int(row), int(update)
    except ValueError:
        raise UsageError(f"{file} is no file of metrics: they are named row000000-update00000000.npz") from None


def metric_files(path: Path, first_row: int) -> list[tuple[int, Path]]:
    """The files of metrics of the rows from `first_row` on, with their first updates, in order."""
    return sorted((place_of(file)[1], file) for file in (path / "metrics").glob(f"row{first_row:06d}-update*.npz"))


def pieces_until(path: Path, first_row: int, update: int) -> Pieces:
    """The metrics of the first `update` updates of the rows from `first_row` on, from a run's folder.

    Raises UsageError, with the reason, where one is missing or damaged.
    """
    pieces: Pieces = {}
    reached = 0
    for start, file in metric_files(path, first_row):
        if start != reached or reached == update:
            break
        piece = read_metrics(file)
        count = min(update - start, next(iter(piece.values())).shape[1])
        pieces[first_row, start] = {name: np.ascontiguousarray(x[:, :count]) for name, x in piece.items()}
        reached += count
    if reached < update:
        raise UsageError(f"metrics of the updates from {reached} on are missing")
    return pieces


def read_metrics(file: Path) -> dict[str, np.ndarray]:
    """Metrics `[rows, updates]` of one file. Raises UsageError where it is damaged: a zip file keeps CRCs."""
    try:
        with file.open("rb") as opened, np.load(opened) as data:  # opened here: np.load leaks a damaged one
            piece = dict(data)
        if len({x.shape for x in piece.values()}) != 1 or next(iter(piece.values())).ndim != 2:
            raise ValueError("it does not hold arrays [rows, updates] of one shape")
        return piece
    except Exception as error:  # zipfile and NumPy raise a dozen kinds of errors on damaged files
        raise UsageError(f"{file} is damaged ({in_a_line(error)})") from error
