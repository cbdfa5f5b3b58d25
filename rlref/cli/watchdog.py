"""What ends `rlref probe` where an agent hangs: XLA cannot be interrupted, so a thread ends the whole process.

An agent hangs that makes no progress with a check for a stated time. What it was asked for, since when, and the likely
cause are told in one line.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

LOOKING = 20.0  # seconds to look for the cause: the agent's own code, which can hang as well, is traced for it


class Watchdog:
    """Ends the process with exit code 1 when nobody has said `progress` for `limit` seconds.

    Args:
      agent: what it is called.
      limit: seconds; 0 or less: for ever.
      as_json: whether to print JSON on stdout, or the line alone on stderr.
      before: called before the line is printed, to clear the screen for it.
    """

    def __init__(self, agent: str, limit: float, as_json: bool, before: Callable[[], None] = lambda: None):
        self.agent, self.limit, self.as_json, self.before = agent, limit, as_json, before
        self._over = threading.Event()
        self.progress("loading the file")

    def __enter__(self) -> "Watchdog":
        if self.limit > 0:
            threading.Thread(target=self._wait, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def progress(self, doing: str) -> None:
        """The agent is now asked for this."""
        self.doing, self.since, self.clock, self.cpu = doing, time.monotonic(), time.time(), time.process_time()

    def _wait(self) -> None:
        while not self._over.wait(min(1.0, self.limit / 10)):
            if time.monotonic() - self.since > self.limit:
                self._end()

    def _end(self) -> None:
        doing, seconds = self.doing, time.monotonic() - self.since
        busy = (time.process_time() - self.cpu) / seconds
        found: list[str] = []
        look = threading.Thread(target=lambda: found.append(cause(self.agent, busy)), daemon=True)
        look.start()
        look.join(LOOKING)
        if self._over.is_set() or self.doing != doing:  # it went on after all
            return
        why = found[0] if found else without_linear_algebra(busy)
        begun = time.strftime("%H:%M:%S", time.localtime(self.clock))
        line = (
            f"HANGS while {shortened(doing)}: {self.agent} has done nothing for {seconds:.0f} s, since {begun}. "
            f"Likely cause: {why}. If it is slow and does not hang, raise --time-limit."
        )
        self.before()
        if self.as_json:
            report: dict[str, Any] = {
                "agent": self.agent,
                "kind": None,
                "oracles": [],
                "rungs": [],
            }
            hung = {"check": doing, "seconds": round(seconds, 1), "since": begun, "cause": why}
            print(json.dumps(report | {"hung": hung, "verdict": "WRONG", "says": line}, indent=1), flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
        os._exit(1)  # a thread that waits in XLA ends no other way


def shortened(doing: str) -> str:
    """What was being done, the checks of a long list counted: a group may train twenty of them."""
    names = doing.split(", ")
    return doing if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def cause(agent: str, busy: float) -> str:
    """Why an agent hangs, most likely. `busy`: processors in use since then."""
    from rlref.contract import AGENTS

    module = loaded(agent)
    if busy < 0.2 and agent not in AGENTS and module is not None:
        for function, names in linear_algebra_of(module).items():
            return (
                f"its {function} does linear algebra ({names}), which XLA batches over seeds and which then waits for "
                "itself on a CPU of few cores; wrap what does so in jax.custom_batching.sequential_vmap, as "
                "`orthogonal` in rlref/ppo.py is"
            )
    return without_linear_algebra(busy)


def without_linear_algebra(busy: float) -> str:
    """Why an agent hangs whose initialisation has none."""
    return "something waits for itself: no processor is in use" if busy < 0.2 else "a loop that never ends"


def loaded(agent: str) -> ModuleType | None:
    """The module of an agent's file, if it could be loaded."""
    name = os.path.splitext(os.path.basename(agent))[0]
    module = sys.modules.get(name)
    return module if hasattr(module, "make") and hasattr(module, "Config") else None


def linear_algebra_of(module: Any) -> dict[str, str]:
    """An agent's `init` and `update`, those that have linear algebra -> its primitives; {} if they cannot be traced."""
    import jax
    import jax.numpy as jnp

    from probes.environments import Tabular, tables
    from probes.one_by_one import linear_algebra_in

    params = tables(obs=[[0.0, 0.0]], reward=[[0.0, 0.0]], next=[0])
    try:
        agent = module.make(module.Config(), Tabular(params), params)
        state = jax.eval_shape(agent.init, jax.random.key(0))
        found = {
            "init": linear_algebra_in(jax.make_jaxpr(agent.init)(jax.random.key(0))),
            "update": linear_algebra_in(jax.make_jaxpr(agent.update)(state, jnp.int32(0))),
        }
    except Exception:  # the user's own code: anything can come
        return {}
    return {function: ", ".join(sorted(names)) for function, names in found.items() if names}
