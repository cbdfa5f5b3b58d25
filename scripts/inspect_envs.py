"""What `rlref inspect` finds in every gymnax environment: `python scripts/inspect_envs.py [ENV ...]`.

Writes scripts/results/inspect.md, a line per environment, in about two minutes on two cores. With names, only prints
the table of these.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gymnax

from rlref.health import findings
from rlref.inspection.inspect import Inspection, inspect

RESULTS = Path(__file__).resolve().parent / "results"


def markdown_table(inspections: Sequence[Inspection]) -> str:
    """A line per environment: its spaces, what a random policy meets, the names of the findings."""
    lines = [
        "| environment | observations | actions | return: mean (min to max) | length | ends terminated | largest "
        "target | findings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in inspections:
        s = one.statistics
        cells = [one.env_id, s.get("observation_space", ""), s.get("action_space", "")]
        if s.get("return"):
            total, target = s["return"], s["value_target"]
            cells.append(f"{total['mean']:.4g} ({total['min']:.4g} to {total['max']:.4g})")
            cells += [f"{s['length']['mean']:.4g}", f"{s['terminated']:.0%}"]
            cells.append(f"{max(abs(target['min']), abs(target['max'])):.4g}")
        else:
            cells += [""] * 4
        cells.append(", ".join(f"{f.severity} {f.check}" for f in one.findings))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    names, inspections = sys.argv[1:] or gymnax.registered_envs, []
    for env_id in names:
        start = time.perf_counter()
        try:
            inspections.append(dataclasses.replace(inspect(env_id), samples=None))  # which are large
        except Exception as error:  # a fault of inspect's own: the others are still worth having
            print(f"  {type(error).__name__}: {error}")
            inspections.append(Inspection(f"{env_id}: {type(error).__name__}"))
        print(f"{env_id}, {time.perf_counter() - start:.1f} s", flush=True)
        for f in inspections[-1].findings:
            print(f"  {f.severity} {f.check}: {findings.headline(f)}", flush=True)
    table = markdown_table(inspections)
    if sys.argv[1:]:
        print(table)
    else:
        (RESULTS / "inspect.md").write_text(f"What `rlref inspect` finds, by scripts/inspect_envs.py.\n\n{table}")


if __name__ == "__main__":
    main()
