"""An agent's file, and the modules beside it that it imports: what of the user's own code decides what is trained."""

import hashlib
import modulefinder
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HASHES = ("source_sha256", "modules_sha256")
"""What `hashes_of` gives."""


def code_of(module: ModuleType) -> dict[str, bytes]:
    """An agent's file, and those modules of its folder that it, or one of them, imports: file -> what is in it.

    Files are named as seen from that folder, the agent's own comes first. Empty without a file. A module that Python
    has found elsewhere, with something else in it, is none of them.
    """
    if not module.__file__:
        return {}
    agent = Path(module.__file__).resolve()
    finder = modulefinder.ModuleFinder(path=[str(agent.parent)])
    finder.run_script(str(agent))
    found = {agent.name: agent.read_bytes()}
    for name, other in sorted(finder.modules.items()):
        file = getattr(other, "__file__", None)
        if file and name != "__main__" and (code := Path(file).read_bytes()) == _imported(name, code):
            found[Path(file).relative_to(agent.parent).as_posix()] = code
    return found


def _imported(name: str, otherwise: bytes) -> bytes | None:
    """What is in the file of an imported module; `otherwise` of one that is not imported yet."""
    if name not in sys.modules:
        return otherwise
    file = getattr(sys.modules[name], "__file__", None)
    return Path(file).read_bytes() if file and Path(file).is_file() else None


def hashes_of(code: dict[str, bytes]) -> dict[str, Any]:
    """The SHA-256 of an agent's file, and where there are any of the modules beside it, as `code_of` gives them."""
    (_, own), *beside = [(name, hashlib.sha256(x).hexdigest()) for name, x in (code or {"": b""}).items()]
    return {"source_sha256": own} | ({"modules_sha256": dict(beside)} if beside else {})
