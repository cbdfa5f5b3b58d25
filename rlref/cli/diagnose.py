"""`rlref diagnose RUN`: what is wrong with a run, or with logs of other libraries, in words."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from rlref.cli.terminal import print_verdict
from rlref.errors import UsageError


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser("diagnose", help="say what is wrong with a run, since when, and what to try")
    what = "the run's folder; or logs of CleanRL or Stable-Baselines3, one per seed: CSV, TensorBoard's, or a folder"
    parser.add_argument("run", type=Path, nargs="+", help=what)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> int:
    """`rlref diagnose RUN`."""
    from rlref.health import findings, foreign
    from rlref.health.engine import diagnose
    from rlref.runs import files
    from rlref.runs.run import load

    paths = options.run
    unknown: list[str] = []
    own = [p for p in paths if (p / "config.json").exists() or (p / "source" / "config.json").exists()]
    if own and len(paths) > 1:
        raise UsageError(f"{own[0]} is a run's folder: give one at a time (several paths are logs, one per seed)")
    if own:
        run = load(paths[0])
        about = f"{run.agent} on {run.config.get('env_id', 'an environment')}, {run.summary['status']}"
        shape, verdict = next(iter(run.metrics.values())).shape, run.diagnose()
    else:
        log = foreign.read(paths)
        about, unknown = f"a log of {log.source}", log.unknown
        shape = next(iter(log.metrics.values())).shape
        # Not the settings that make a schedule: how their updates are counted differs.
        known = ("gamma", "target_kl", "max_grad_norm")
        config = {name: x for name, x in log.config.items() if name in known}
        verdict = diagnose(log.metrics, config, seeds=log.seeds, kind=log.kind, exact=False)
    if options.json:
        print(files.json_text(dataclasses.asdict(verdict)))
        return findings.exit_code(verdict.findings)
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    settings = f"{shape[0]} settings, " if len(shape) == 3 else ""
    console.print(f"{about}: {settings}{shape[-2]} seed{'s' * (shape[-2] > 1)}, {shape[-1]} updates")
    print_verdict(console, verdict)
    reasons: dict[str, list[str]] = {}
    for name, why in verdict.unchecked.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        console.print(f"not checked, for want of {why}: {', '.join(names)}", style="dim", markup=False)
    if unknown:
        console.print(f"in the log, and not used: {', '.join(unknown)}", style="dim", markup=False)
    return findings.exit_code(verdict.findings)
