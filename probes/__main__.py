"""`python -m probes` prints the tables of probes/checks.md, made from the code; `--gymnasium` checks a trainer."""

import inspect
import sys
from collections.abc import Iterable

import numpy as np

from probes import solve
from probes.check import error
from probes.ladder import LADDER, Answer
from probes.memory import MEMORY
from probes.oracles import MEMORY_ORACLES, ORACLES
from probes.verdict import numbers


def main() -> None:
    print("| oracle | for | it is | what must hold | component | functions of the file |")
    print("|---|---|---|---|---|---|")
    for oracle in (ORACLES | MEMORY_ORACLES).values():
        needs = ", ".join(f"`{name}({', '.join(fields)})`" for name, fields in oracle.needs.items())
        doc = one_line(oracle.check)
        others = ", ".join(oracle.instead_of)
        contract = "the contract alone" + (f", where one of these cannot be asked: {others}" if others else "")
        whose = kinds(oracle.kinds, oracle.name in MEMORY_ORACLES)
        print(f"| `{oracle.name}` | {whose} | {oracle.holds} | {doc} | {oracle.isolates} | {needs or contract} |")
    print("\n| probe | for | task and truth | component | gamma | tolerance | wrong answers it separates |")
    print("|---|---|---|---|---|---|---|")
    for probe in (LADDER | MEMORY).values():
        case = probe.case(0)
        doc = one_line(probe.make)
        tolerances = [f"{probe.tolerance:g}"] if case.truth.value is not None else []
        tolerances += [f"policy {probe.policy_tolerance:g}"] if case.truth.policy is not None else []
        causes = "below" if probe.fingerprints else "; ".join(f"{c} {shown(a)}" for c, a in probe.wrong(case).items())
        whose = kinds(probe.kinds, probe.name in MEMORY)
        print(
            f"| `{probe.name}` | {whose} | {doc} | {probe.isolates} | {probe.gamma:g} | "
            f"{', '.join(tolerances)} | {causes} |"
        )
    rungs = [probe for probe in LADDER.values() if probe.fingerprints]
    print("\n| what the learner does wrong | " + " | ".join(f"`{p.name}`" for p in rungs) + " |")
    print("|---|" + "---|" * len(rungs))
    for name, learner in {"nothing": solve.RIGHT, **solve.WRONG}.items():
        cells = []
        for probe in rungs:
            case = probe.case(0)
            value = solve.state_values(case.params, np.ones_like(case.params.reward), probe.gamma, learner)
            if value is None:
                cells.append("diverges")
            elif name != "nothing" and error(probe, "ppo", case, Answer(value)) < 1e-3:
                cells.append("same")
            else:
                cells.append(numbers(value[:2], value[:2])[1:-1])
        print(f"| {name} | " + " | ".join(cells) + " |")


def one_line(function: object) -> str:
    """A docstring as a table's cell."""
    return " ".join((inspect.getdoc(function) or "").split()).replace("|", "\\|")


def kinds(names: Iterable[str], memory: bool = False) -> str:
    return ", ".join(map(str.upper, names)) + " with a memory" * memory


def shown(answer: Answer) -> str:
    """A wrong answer in numbers, as seed 0 would meet it."""
    parts = [] if answer.value is None else [f"V {numbers(answer.value, answer.value)}"]
    if answer.policy is not None:
        parts.append(f"policy {numbers(answer.policy, answer.policy)}")
    return ", ".join(parts)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        from probes import trainers

        sys.exit(trainers.main(sys.argv[1:]))
    main()
