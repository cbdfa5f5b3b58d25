"""What can be known of rlref on GPUs and TPUs without one: `python scripts/accelerator.py [NAME ...]`.

XLA compiles for devices that are not there. This compiles the programs that `rlref train` runs, for an H100, an A100 and
a TPU v5e, four of them side by side, and counts in what comes out:

    launches     operations that the device starts one by one, in an update and in the loops inside it. What a library
                 starts inside one of them (cuBLAS, cuSOLVER) is not seen
    memory       bytes of a seed by XLA's own account, against rlref's plan; and how many seeds that leaves room for
    collectives  what devices would have to say to each other: must be 0
    copies       of more than 1 MB inside loops

It knows nothing of time, and of numerics. NAME is a device (h100, a100, v5e), an agent, or both as in h100/ppo; without
one, all are compiled, in about an hour and a half on two cores. Each kind of device has an environment of its own, made
on first use (1.7 GB for GPUs, 0.7 GB for TPUs). Results go to scripts/results/accelerator.json, their tables to
accelerator.md. Exit code 1 if there is a collective, a copy of a replay buffer inside a loop, or if a seed takes more
than 1.25 times its plan.

    --agents FOLDER    the agents' files of another commit: for comparing, with --out
    --out FILE         write the results there (JSON alone), not to scripts/results
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import venv
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import page

RESULTS = page.ROOT / "scripts" / "results" / "accelerator.json"
DEVICES_SIDE_BY_SIDE = 4
LIMIT = 3000  # seconds that one process may take
PLAN_FACTOR = 1.25  # what a seed may take of its plan
LARGE = 1_000_000  # bytes of a copy that is counted

GPU_PACKAGES = ["jax-cuda13-plugin=={jaxlib}", "nvidia-cuda-nvcc", "nvidia-nvvm"]
TPU_PACKAGES = ["libtpu==0.0.42.*"]
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
CASES = [("CartPole-v1", 8), ("CartPole-v1", 512), ("CartPole-v1", 4096), ("Breakout-MinAtar", 512)]
AGENTS = ("ppo", "dqn", "cem")


# ---- Reading a compiled program --------------------------------------------------------------------------------------
FREE = {  # what starts nothing on a device
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "domain",
    "partition-id", "replica-id", "add-dependency",
}  # fmt: skip
COLLECTIVE = re.compile(r"all-(reduce|gather|to-all)|reduce-scatter|collective-|send|recv")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}


class Operation(NamedTuple):
    name: str
    opcode: str
    shape: str
    attributes: str

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
    """Operations that are started: once, and in each turn of a loop whose turns are not known, from the outermost in."""

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

    def operations(self, computation: str, inside: tuple[str, ...] = ("body", "condition", "calls", "to_apply")) -> Any:
        """All operations of a computation, and of what it calls."""
        for operation in self.computations[computation]:
            yield operation
            for name in operation.called(*inside, "branch_computations"):
                if name in self.computations:
                    yield from self.operations(name, inside)

    def turns(self, loop: Operation) -> int | None:
        """How often a loop turns; None where that is not known when it is compiled."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        # XLA for TPUs does not say so: a count from 0 by 1 to a constant.
        *rest, last = [op for op in self.computations[loop.called("condition")[0]] if op.opcode not in FREE - {"constant"}]
        if last.opcode == "compare" and "direction=LT" in last.attributes and [op.opcode for op in rest] == ["constant"]:
            return int(rest[0].attributes.partition(")")[0])
        return None

    def launches(self, computation: str | None = None) -> Cost:
        """What running a computation starts: by default the whole program."""
        once, per_turn = 0.0, [0.0]
        for op in self.computations[computation or self.entry]:
            inner = []
            if op.opcode == "while":
                body, condition = (self.launches(op.called(kind)[0]) for kind in ("body", "condition"))
                if self.turns(op) is None:
                    own = body.once + condition.once
                    inner, counts = [own, *body.per_turn], 0.0
                else:
                    counts, inner = self.turns(op) * body.once, [self.turns(op) * x for x in body.per_turn]
            elif op.opcode == "conditional":
                branches = [self.launches(name) for name in op.called("branch_computations", "true_computation", "false_computation")]
                counts = 1 + max(branch.once for branch in branches)
            elif op.opcode == "call":
                called = self.launches(op.called("to_apply")[0])
                counts, inner = called.once, list(called.per_turn)
            else:
                counts = op.opcode not in FREE and not op.opcode.endswith("-done")
            once += counts
            for depth, x in enumerate(inner):
                per_turn += [0.0] * (depth + 1 - len(per_turn))
                per_turn[depth] = max(per_turn[depth], x) if depth else per_turn[0] + x
        return Cost(once, tuple(per_turn) if any(per_turn) else ())

    def body_of_update(self) -> str:
        """The loop over updates: the outermost whose turns are not known."""
        loops = [op for op in self.operations(self.entry, ("to_apply",)) if op.opcode == "while" and self.turns(op) is None]
        return loops[0].called("body")[0]

    def loops(self, computation: str) -> list[tuple[int | None, float]]:
        """Turns and launches a turn of the innermost loops of a computation that start most, in their order."""
        found = []
        for op in self.operations(computation, ("body", "to_apply")):
            if op.opcode == "while":
                body = op.called("body")[0]
                own = self.launches(body).once + (self.launches(op.called("condition")[0]).once if self.turns(op) is None else 0)
                found.append((self.turns(op), own))
        return found

    def copies(self, computation: str) -> Counter[str]:
        """Shapes of copies of more than `LARGE` bytes in loops inside a computation, with how often a turn of it does."""
        found: Counter[str] = Counter()
        for op in self.computations[computation]:
            if op.opcode == "while":
                body, turns = op.called("body")[0], self.turns(op) or 1
                for inner in self.computations[body]:
                    fused = inner.opcode == "fusion" and self.is_copy(inner.called("calls")[0])
                    if (inner.opcode in ("copy", "copy-start") or fused) and inner.bytes > LARGE:
                        found[re.sub(r"\{.*?\}|\(|,? u32\[\].*", "", inner.shape)] += turns
                found.update({shape: turns * n for shape, n in self.copies(body).items()})
            elif op.opcode == "call":
                found.update(self.copies(op.called("to_apply")[0]))
        return found

    def is_copy(self, computation: str) -> bool:
        """Whether a fusion does nothing but lay out its operand anew."""
        opcodes = {op.opcode for op in self.computations[computation]}
        return bool(opcodes & {"copy", "transpose"}) and opcodes <= {"parameter", "copy", "transpose", "bitcast", "reshape"}

    @cached_property
    def collectives(self) -> int:
        return sum(bool(COLLECTIVE.match(op.opcode)) for ops in self.computations.values() for op in ops)
