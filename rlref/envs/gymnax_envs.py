"""gymnax's environments: importing it without what it needs for pictures alone, and its spaces in words."""

import importlib
import sys
from types import ModuleType
from typing import Any

NEEDS_DOWNLOAD = ("MNISTBandit-bsuite",)


class _Later(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # another thread asks while gymnax is being imported
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def imported_gymnax() -> ModuleType:
    """The package. What its files import for their pictures alone takes longest, and is imported when it is used."""
    for_pictures = [name for name in ("matplotlib.pyplot", "seaborn") if name not in sys.modules]
    sys.modules |= {name: _Later(name) for name in for_pictures}
    try:
        return importlib.import_module("gymnax")
    finally:
        for name in for_pictures:
            if isinstance(sys.modules.get(name), _Later):
                del sys.modules[name]


def describe(space: Any) -> str:
    """A space in a few words, such as 'Discrete 3' or 'Box 10x10x4 float32'."""
    if hasattr(space, "n"):
        return f"Discrete {space.n}"
    if hasattr(space, "nvec"):
        return f"MultiDiscrete {' '.join(map(str, space.nvec))}"
    if hasattr(space, "action_mask"):
        return f"{describe(space.inner)}, action mask {space.action_mask}"
    if hasattr(space, "low"):
        import numpy as np

        return f"Box {'x'.join(map(str, space.shape)) or 'scalar'} {np.dtype(space.dtype).name}"
    return type(space).__name__
