"""What can be known of rlref on GPUs and TPUs without one: `python scripts/accelerator.py [NAME ...]`.

XLA compiles for devices that are not there. This compiles the programs that `rlref train` runs, for an H100, an A100
and a TPU v5e, four of them side by side, and counts in what comes out:

    launches     operations that the device starts one by one, in an update and in each turn of the loops inside it.
                 Not what a library such as cuSOLVER starts by itself inside one of them
    memory       bytes of a seed by XLA's own account, against rlref's plan; and the seeds that leaves room for
    collectives  what devices would have to say to each other
    copies       of more than 1 MB in loops inside an update

It knows nothing of time, and of numerics. NAME is a device (h100, a100, v5e), an agent, or both, as in h100/ppo;
without one all are compiled, in about an hour on two cores. Each kind of device has an environment of its own, made on
first use (1.7 GB for GPUs, 0.7 GB for TPUs). Results go to scripts/results/accelerator.json, their tables to
accelerator.md. Exit code 1 if there is a collective, a copy of a replay buffer in a loop, or if from 128 seeds on a
seed takes more than 1.25 times its plan.

    --before COMMIT    the agents' files as they were at that commit, for comparing: the same programs around them
    --fit              instead, what `rlref train` does where XLA finds that a plan does not fit: on the v5e
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import page
from peer_environments import python_with

RESULTS = page.ROOT / "scripts" / "results" / "accelerator.json"
SIDE_BY_SIDE = 4  # devices
LIMIT = 3000  # seconds that one process may take
PLAN_FACTOR = 1.25  # what a seed may take of its plan
LARGE = 1_000_000  # bytes of a copy that is counted

PACKAGES = {
    "cuda": [f"jax-cuda13-plugin=={version('jaxlib')}", "nvidia-cuda-nvcc", "nvidia-nvvm"],
    "tpu": ["libtpu==0.0.42.*"],
}
TPU_VARIABLES = {  # of four chips that are not there; the last one lets two processes compile at a time
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# XLA's description of a GPU (its proto GpuTargetConfig); the figures are of NVIDIA's data sheets.
GPU = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 shared_memory_per_block: 49152
  {figures}
  runtime_version: "13.0.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
"""
H100 = """core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 memory_bandwidth: 3352320000000
  l2_cache_size: 52428800 device_memory_size: 84942979072 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }"""
A100 = """core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 memory_bandwidth: 2039040000000
  l2_cache_size: 41943040 device_memory_size: 85100068864 shared_memory_per_core: 167936
  shared_memory_per_block_optin: 166912 cuda_compute_capability { major: 8 }"""


class Device(NamedTuple):
    platform: str
    name: str
    memory: float
    """bytes that programs may use"""
    target: str
    """GPUs: XLA's description; TPUs: the name of a topology of four"""


DEVICES = {
    "h100": Device("cuda", "H100 80 GB", 84_942_979_072, GPU.format(figures=H100)),
    "a100": Device("cuda", "A100 80 GB", 85_100_068_864, GPU.format(figures=A100)),
    "v5e": Device("tpu", "TPU v5e", 15.75 * 2**30, "v5e:2x2"),
}
CASES = [("CartPole-v1", 8), ("CartPole-v1", 512), ("CartPole-v1", 4096), ("Breakout-MinAtar", 128)]
AGENTS = ("ppo", "dqn", "cem")
FIT = "v5e/dqn/Breakout-MinAtar/720"
MEMORY_SHARE = 0.8  # of a device's memory, as in rlref/runs/plan.py, which needs jax


# ---- Reading a compiled program --------------------------------------------------------------------------------------
FREE = {  # what starts nothing on a device
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "domain",
    "partition-id", "replica-id", "add-dependency",
}  # fmt: skip
BRANCHES = ("branch_computations", "true_computation", "false_computation")
COLLECTIVE = re.compile(r"all-(reduce|gather|to-all)|reduce-scatter|collective-|send|recv")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}


class Operation(NamedTuple):
    name: str
    opcode: str
    shape: str
    attributes: str

    @property
    def is_launch(self) -> bool:
        """Whether it starts something by itself, or in what it calls."""
        return self.opcode not in FREE and not self.opcode.endswith("-done")

    @property
    def bytes(self) -> int:
        """Of what it gives."""
        parts = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", self.shape)
        return sum(BYTES.get(kind, 4) * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in parts)

    def called(self, *kinds: str) -> list[str]:
        """The computations that it names as one of `kinds`."""
        found = re.findall(rf"\b(?:{'|'.join(kinds)})=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", self.attributes)
        return [name.strip(" %") for many, one in found for name in (many or one).split(",")]


class Cost(NamedTuple):
    """Operations that are started: once, and in a turn of loops whose turns are not known, from the outermost in."""

    once: float
    per_turn: tuple[float, ...] = ()


class Program:
    """A compiled program, read from XLA's text."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Operation]] = {}
        for line in text.splitlines():
            if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line):
                operations = self.computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else getattr(self, "entry", "")
            # A tuple's shape holds commentaries such as /*index=5*/, and layouts hold parentheses.
            elif found := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ((?:\(.*?\)|\S+)) ([a-z][\w\-]*)\((.*)$", line):
                operations.append(Operation(found[1], found[3], found[2], found[4]))

    def operations(self, computation: str, inside: tuple[str, ...]) -> Iterator[Operation]:
        """All operations of a computation, and of what it calls as one of `inside`, or as a branch."""
        for operation in self.computations[computation]:
            yield operation
            for name in operation.called(*inside, *BRANCHES):
                if name in self.computations:
                    yield from self.operations(name, inside)

    def turns(self, loop: Operation) -> int | None:
        """How often a loop turns; None where that is not known when it is compiled."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        # XLA for TPUs does not say so: a count from 0 by 1 to a constant.
        condition = self.computations[loop.called("condition")[0]]
        found = {op.opcode: op for op in condition if op.opcode not in FREE - {"constant"}}
        if list(found) == ["constant", "compare"] and "direction=LT" in found["compare"].attributes:
            return int(found["constant"].attributes.partition(")")[0])
        return None

    def launches(self, computation: str | None = None) -> Cost:
        """What running a computation starts: by default the whole program."""
        once, per_turn = 0.0, [0.0]
        for op in self.computations[computation or self.entry]:
            inner: list[float] = []
            if op.opcode == "while":
                body, condition = (self.launches(op.called(kind)[0]) for kind in ("body", "condition"))
                if (turns := self.turns(op)) is None:
                    counts, inner = 0.0, [body.once + condition.once, *body.per_turn]
                else:
                    counts, inner = turns * body.once, [turns * x for x in body.per_turn]
            elif op.opcode == "conditional":
                most = max((self.launches(name) for name in op.called(*BRANCHES)), key=lambda branch: branch.once)
                counts, inner = 1 + most.once, list(most.per_turn)
            elif op.opcode == "call":
                called = self.launches(op.called("to_apply")[0])
                counts, inner = called.once, list(called.per_turn)
            else:
                counts = float(op.is_launch)
            once += counts
            for depth, x in enumerate(inner):
                per_turn += [0.0] * (depth + 1 - len(per_turn))
                per_turn[depth] += x
        return Cost(once, tuple(per_turn) if any(per_turn) else ())

    def body_of_update(self) -> str:
        """The loop over updates: the outermost whose turns are not known."""
        loops = [
            op for op in self.operations(self.entry, ("to_apply",)) if op.opcode == "while" and self.turns(op) is None
        ]
        return loops[0].called("body")[0]

    def loops(self, computation: str) -> list[tuple[int | None, float]]:
        """Turns, and launches of a turn, of all loops inside a computation; without what is in loops inside these."""
        found = []
        for op in self.operations(computation, ("body", "to_apply")):
            if op.opcode == "while":
                body = self.computations[op.called("body")[0]]
                found.append((self.turns(op), float(sum(x.is_launch and x.opcode != "while" for x in body))))
        return found

    def copies(self, computation: str) -> Counter[str]:
        """Shapes of copies of more than `LARGE` bytes in loops inside a computation, and how many it makes."""
        found: Counter[str] = Counter()
        for op in self.computations[computation]:
            if op.opcode == "while":
                body, turns = op.called("body")[0], self.turns(op) or 1
                for inner in self.computations[body]:
                    fused = inner.opcode == "fusion" and self.is_copy(inner.called("calls")[0])
                    if (inner.opcode in ("copy", "copy-start") or fused) and inner.bytes > LARGE:
                        found[re.sub(r"\{.*?\}|\(|,? u32\[\].*", "", inner.shape)] += turns
                found.update({shape: turns * n for shape, n in self.copies(body).items()})
            elif op.opcode in ("call", "conditional"):
                for name in op.called("to_apply", *BRANCHES):
                    found.update(self.copies(name))
        return found

    def is_copy(self, computation: str) -> bool:
        """Whether a fusion does nothing but lay out its operand anew."""
        opcodes = {op.opcode for op in self.computations[computation]}
        return bool(opcodes & {"copy", "transpose"}) and opcodes <= {
            "parameter",
            "copy",
            "transpose",
            "bitcast",
            "reshape",
        }

    @property
    def collectives(self) -> int:
        return sum(bool(COLLECTIVE.match(op.opcode)) for ops in self.computations.values() for op in ops)


# ---- Compiling: in the environment of a kind of device ---------------------------------------------------------------
def devices_of(device: Device) -> list[Any]:
    """Four devices that are not there."""
    from jax.experimental import topologies

    if device.platform == "cuda":
        target = {"target_config": device.target, "topology": f"1x1x{SIDE_BY_SIDE}"}
    else:
        target = {"topology_name": device.target}
    return list(topologies.get_topology_desc(platform=device.platform, **target).devices)


def job_and_plan(device: str, agent: str, env_id: str, seeds: int, folder: str = "") -> tuple[Any, Any]:
    """The job of training with this many seeds on each of four devices, and how it is laid out on them.

    CartPole with the agent's own defaults, other environments as `rlref train` starts from. `folder` holds the agents'
    files; '' for rlref's.
    """
    import dataclasses

    import jax
    import numpy as np

    from rlref import tuned
    from rlref.contract import load_agent
    from rlref.envs.ids import make_env
    from rlref.runs.job import Job
    from rlref.runs.plan import Plan

    module = load_agent(f"{folder}/{agent}.py" if folder else agent)
    settings = {} if env_id == "CartPole-v1" else dataclasses.asdict(tuned.config(agent, env_id))
    rows = SIDE_BY_SIDE * seeds
    job = Job(module, module.Config(**settings), *make_env(env_id), list(range(rows)), 0, 1, False)
    axis = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.Mesh(np.array(devices_of(DEVICES[device])), ("seed",), axis_types=axis)
    return job, Plan(mesh, rows, rows)


def worker_look(device: str, agent: str, env_id: str, seeds: str, folder: str = "") -> dict[str, Any]:
    """What the compiled programs of a case show."""
    import jax

    from rlref.runs.plan import job_bytes
    from rlref.runs.programs import device_bytes, lower_programs

    job, plan = job_and_plan(device, agent, env_id, int(seeds), folder)
    compiled = {name: lowered.compile() for name, lowered in lower_programs(job, plan)}
    programs = {name: Program(x.as_text()) for name, x in compiled.items()}
    chunk = programs["chunk"]
    update = chunk.body_of_update()
    cost, loops, copies = chunk.launches(update), chunk.loops(update), chunk.copies(update)
    buffer = jax.tree.leaves(getattr(job.row.state, "buffer", ()))
    shapes = {f"[{','.join(map(str, (int(seeds), *x.shape)))}]" for x in buffer}
    # The loop over environment steps starts most. CEM's takes several in a turn, if it is not asked after each.
    turns, in_a_turn = max(loops, key=lambda x: (x[0] or 100) * x[1])
    steps = 1.0
    if agent == "cem" and turns and DEVICES[device].platform == "cuda":
        steps = min(getattr(job.module, "BLOCK", 1), job.env_params.max_steps_in_episode) / turns
    return {
        "launches": cost.once,
        "launches_in_turns": cost.per_turn,
        "per_step": in_a_turn / steps,
        "loops": loops,
        "init": programs["init"].launches().once,
        "bytes": max(map(device_bytes, compiled.values())) / int(seeds),
        "plan": job_bytes(job, False, plan.mesh),
        "collectives": sum(program.collectives for program in programs.values()),
        "copies": copies,
        "buffer_copies": sum(n for shape, n in copies.items() if any(x in shape for x in shapes)),
    }


def worker_fit(device: str, agent: str, env_id: str, seeds: str) -> dict[str, Any]:
    """The groups that a training of so many seeds on ONE device comes to, begun with all of them at once."""
    import jax

    from rlref.runs.display import Silent
    from rlref.runs.plan import MEMORY_SHARE, Plan
    from rlref.runs.programs import compile_to_fit

    class Said(Silent):
        lines: list[str] = []  # noqa: RUF012 - one object

        def say(self, text: str) -> None:
            self.lines.append(text)

    job, plan = job_and_plan(device, agent, env_id, int(seeds))
    axis, one = (jax.sharding.AxisType.Auto,), plan.mesh.devices[:1]
    rows = int(seeds)
    job = type(job)(job.module, job.config, job.env, job.env_params, list(range(rows)), 0, 1, False)
    alone = Plan(jax.sharding.Mesh(one, ("seed",), axis_types=axis), rows, rows, MEMORY_SHARE * DEVICES[device].memory)
    programs, fitted = compile_to_fit(job, alone, Said())
    return {"rows": fitted.rows, "bytes": programs.bytes, "said": Said.lines}


# ---- The script ------------------------------------------------------------------------------------------------------
def python_for(platform: str) -> Path:
    """The Python of an environment with rlref's own versions and what compiles for `platform`; made on first use."""
    return python_with(platform, "-c", "constraints.txt", "-e", ".", *PACKAGES[platform], seconds=1800)


def ask(what: str, device: str, *arguments: Any) -> dict[str, Any]:
    """What a worker returns, in a process of its own."""
    platform = DEVICES[device].platform
    python, script = python_for(platform), str(Path(__file__).resolve())
    variables = os.environ | {"JAX_PLATFORMS": "cpu"} | (TPU_VARIABLES if platform == "tpu" else {})
    command = [str(python), script, "--worker", what, device, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=variables)
    except subprocess.TimeoutExpired:
        return {"error": f"not compiled within {LIMIT} seconds"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it was killed"])[-1][:500]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def wrong(row: dict[str, Any], seeds: int) -> list[str]:
    """What of a case must not be."""
    if "error" in row:
        return [row["error"]]
    found = []
    if row["collectives"]:
        found.append(f"{row['collectives']} collectives")
    if row["buffer_copies"]:
        found.append(f"{row['buffer_copies']} copies of the replay buffer in an update")
    if seeds >= 128 and row["bytes"] > PLAN_FACTOR * row["plan"]:
        found.append(f"{row['bytes'] / row['plan']:.2f} x the planned memory")
    return found


def table(results: dict[str, Any], when: str) -> str:
    lines = [
        f"| {when} | seeds | launches of an update | of an environment step | init | kB a seed | of plan | seeds that "
        "fit | collectives | copies above 1 MB | of the buffer |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        device, agent, env_id, seeds = name.split("/")
        what = f"| {DEVICES[device].name}, {agent.upper()}, {env_id} | {seeds} | "
        if "error" in row:
            lines.append(f"{what}{row['error'].replace('|', ' ')} |||||||||")
            continue
        inside = "".join(f" + ? x {n:,.0f}" for n in row["launches_in_turns"])
        fit = int(MEMORY_SHARE * DEVICES[device].memory / row["bytes"])
        lines.append(
            f"{what}{row['launches']:,.0f}{inside} | {row['per_step']:.3g} | {row['init']:,.0f} | "
            f"{row['bytes'] / 1000:,.0f} | {row['bytes'] / row['plan']:.2f} | {fit:,} | {row['collectives']} | "
            f"{sum(row['copies'].values()):,} | {row['buffer_copies']:,} |"
        )
    return "\n".join(lines) + "\n"


def agents_of(commit: str, folder: str) -> None:
    """Write the agents' files of a commit to a folder."""
    for agent in AGENTS:
        show = ["git", "-C", str(page.ROOT), "show", f"{commit}:rlref/{agent}.py"]
        (Path(folder) / f"{agent}.py").write_bytes(subprocess.run(show, check=True, capture_output=True).stdout)


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps({"look": worker_look, "fit": worker_fit}[sys.argv[2]](*sys.argv[3:])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a device, an agent, or both as in h100/ppo")
    parser.add_argument("--before", metavar="COMMIT", help="the agents' files as they were at that commit")
    parser.add_argument("--fit", action="store_true", help="what 720 seeds of DQN on Breakout come to on a TPU v5e")
    options = parser.parse_args()
    every = [f"{device}/{agent}/{env_id}/{seeds}" for device in DEVICES for agent in AGENTS for env_id, seeds in CASES]
    chosen = [
        x for x in every if not options.names or any(set(n.split("/")) <= set(x.split("/")) for n in options.names)
    ]
    if not chosen:
        parser.error(f"there are the devices {', '.join(DEVICES)} and the agents {', '.join(AGENTS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.fit:
        results["fit"] = {FIT: ask("fit", *FIT.split("/"))}
        print(json.dumps(results["fit"], indent=1))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        return int("error" in results["fit"][FIT])
    for device in {x.split("/")[0] for x in chosen}:
        python_for(DEVICES[device].platform)
    when = "before" if options.before else "now"
    bad = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        if options.before:
            agents_of(options.before, folder)
        files = [folder] if options.before else []
        found = pool.map(lambda name: ask("look", *name.split("/"), *files), chosen)
        for name, row in zip(chosen, found, strict=False):
            results[when] = {x: y for x in every if (y := ({**results.get(when, {}), name: row}).get(x))}
            faults = wrong(row, int(name.split("/")[3]))
            bad += bool(faults)
            print(f"{name}: {row.get('launches', 0):,.0f} launches{''.join(f'; {x}' for x in faults)}", flush=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    for part in ("before", "now"):
        if part in results:
            page.put(RESULTS.with_suffix(".md"), part, table(results[part], part))
    return int(bad > 0 and not options.before)


if __name__ == "__main__":
    sys.exit(main())
