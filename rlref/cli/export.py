"""`rlref export RUN --seed N`: one seed's parameters as a file of its own."""

import argparse
import json
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("export", help="write one seed's parameters and settings to a file of its own")
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--seed", type=int, help="which seed (default: the first)")
    parser.add_argument("--setting", type=int, default=0, help="which setting, of a sweep (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--out", type=Path, help="the file to write (default: seed-N.npz in the run's folder)")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref export RUN`."""
    from rlref.runs import trained

    one = trained.of_folder(options.run)
    seed = one.job.seeds[0] if options.seed is None else options.seed
    row = one.row(seed, options.setting)
    setting = f"setting-{options.setting}-" if one.job.batched else ""
    path = options.run / f"{setting}seed-{seed}.npz" if options.out is None else options.out
    one.export(row, path)
    agent = one.job.name
    if options.json:
        print(json.dumps({"file": str(path), "agent": agent, "seed": seed, "setting": options.setting}))
    else:
        from gymnax import registered_envs

        env_id = one.job.config.env_id
        env = "" if env_id in registered_envs else f", *envs.make_env({env_id!r})"
        call = "from rlref import envs; " * bool(env) + f"agent, state = {agent}.load({str(path)!r}{env})"
        print(f"written to {path}; from Python, with a copy of {agent}.py: {call}")
    return 0
