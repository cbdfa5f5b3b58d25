"""Writing files so that a kill leaves the old one or the new one whole; JSON with a checksum."""

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from rlref.errors import UsageError, in_a_line


def write(path: Path, save: Callable[[IO[bytes]], Any]) -> None:
    """Write a file atomically: under another name, onto the disk, and then moved."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        save(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def save_arrays(path: Path, values: dict[str, np.ndarray]) -> None:
    """Write arrays atomically, in NumPy's format."""
    write(path, lambda file: np.savez(file, **values))  # type: ignore[arg-type]


def json_text(value: Any) -> str:
    """`value` as JSON; NaN and infinities become null, which JSON has."""

    def clean(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: clean(v) for k, v in x.items()}
        if isinstance(x, list | tuple):
            return [clean(v) for v in x]
        return None if isinstance(x, float) and not np.isfinite(x) else x

    return json.dumps(clean(value), indent=1, allow_nan=False)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write `value` atomically, with its CRC-32 as a last entry."""
    value = json.loads(json_text(value))
    text = json_text(value | {"crc32": zlib.crc32(json_text(value).encode())})
    write(path, lambda file: file.write(f"{text}\n".encode()))


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. Raises UsageError where it is missing or damaged."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
        crc32 = value.pop("crc32")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({in_a_line(error)})") from error
    if crc32 != zlib.crc32(json_text(value).encode()):
        raise UsageError(f"{path} is damaged, or was changed by hand")
    return value


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a file system's refusal into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write the run to {path}: {error.strerror}") from error
