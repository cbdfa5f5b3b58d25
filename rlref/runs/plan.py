"""How many rows train at once, on how many devices: what memory allows, and what caches hold."""

import math
from typing import NamedTuple

import jax

from rlref.errors import UsageError
from rlref.runs import compiling, hosts
from rlref.runs.display import Display
from rlref.runs.footprint import free_bytes
from rlref.runs.job import Job

MEMORY_SHARE = 0.8  # of the free memory that a group of rows may take
# A CPU core trains its rows in blocks, as more fall out of its caches: of at most so many rows, and so many bytes.
BLOCK_ROWS, BLOCK_BYTES = 8, 8e6


# A TPU pads arrays to tiles of 8 x 128, and copies the state into another layout and back around its loops. The factor
# is what scripts/results/accelerator.md has found; what a program takes is looked at once it is compiled.
TPU_FACTOR = 2


class Plan(NamedTuple):
    """How rows are laid out. A group is what is trained at once: `rows` of them real, `padded` to fill the devices."""

    mesh: jax.sharding.Mesh
    rows: int
    padded: int
    budget: float = math.inf
    """bytes that compiled programs may take of each device; on a CPU they are not looked at"""
    fixed: bool = False
    """whether `rows` must be as they are, because the run's checkpoints have them so"""


def job_bytes(job: Job, saved: bool, mesh: jax.sharding.Mesh | None = None) -> int:
    """Memory that a row takes at its peak, on the devices of `mesh` or of this process.

    On a CPU with the copies of its state that are made outside an update: what a checkpoint is written from, with
    `saved`; and a block of rows while it trains, which is half of a device's rows at most.
    """
    copied = job.row.state_bytes if compiling.on_cpu(mesh) else 0
    factor = TPU_FACTOR if compiling.platform(mesh) == "tpu" else 1
    return factor * job.row.peak_bytes + copied * saved + copied // 2


def rows_at_once(job: Job, rows: int, mesh: jax.sharding.Mesh | None = None) -> int:
    """How many of its `rows` a device trains at once: a divisor that caches hold; all, if there is none worth it."""
    if not compiling.on_cpu(mesh):
        return rows
    most = max(1, min(BLOCK_ROWS, int(BLOCK_BYTES // job.row.peak_bytes)))
    block = max(size for size in range(1, most + 1) if rows % size == 0)
    return block if 2 * block >= most else rows


def make_plan(
    num_rows: int, bytes_per_row: int, memory_gb: float | None, display: Display, rows: int | None = None
) -> Plan:
    """Choose groups of `rows` rows, or that fit the memory, and as many devices as fill up with the least padding."""
    if memory_gb is not None and not memory_gb > 0:
        raise UsageError(f"memory_gb is {memory_gb}; it must be above 0")
    if memory_gb == math.inf:
        raise UsageError("memory_gb is inf; it must be finite")
    budget = memory_gb * 1e9 if memory_gb is not None else MEMORY_SHARE * free_bytes()
    # Of every process its own share; all must come to the same groups.
    fit = jax.process_count() * int(hosts.gathered([min(int(budget // bytes_per_row), 2**31 - 1)]).min())
    fixed = rows is not None
    if fit < (1 if rows is None else min(rows, num_rows)):
        raise too_much(rows or 1, fixed, (rows or 1) * bytes_per_row, budget)
    if rows is None:
        rows = math.ceil(num_rows / math.ceil(num_rows / fit))
    groups = math.ceil(num_rows / rows)
    if groups > 1:
        display.say(
            f"{num_rows} seeds would take about {num_rows * bytes_per_row / 1e6:,.0f} MB, and {budget / 1e6:,.0f} MB "
            f"may be used: they train in {groups} groups of at most {rows}, one after the other"
        )
    mesh, padded = compiling.mesh_for(rows)
    # The least of all processes: all must come to the same groups, later on too.
    of_a_device = int(hosts.gathered([min(int(budget / jax.local_device_count() / 1e6), 2**31 - 1)]).min()) * 1e6
    return Plan(mesh, rows, padded, math.inf if compiling.on_cpu() else of_a_device, fixed)


def smaller(plan: Plan, num_rows: int, needed: float) -> Plan:
    """A plan of smaller groups for `num_rows` rows, where a group needs more bytes of a device than there are.

    `needed` is infinite where that many are not known. Raises UsageError if there is no smaller one.
    """
    here = plan.mesh.devices.flat[0] in jax.devices()
    devices = jax.devices() if here else list(plan.mesh.devices.flat)  # or some that are not there, to be compiled for
    on_a_device = plan.padded // plan.mesh.size
    known = needed < math.inf
    fit = min(int(on_a_device * plan.budget / needed), on_a_device - 1) if known else on_a_device // 2
    if plan.fixed or fit < 1:
        raise too_much(plan.rows if plan.fixed else on_a_device, plan.fixed, needed, plan.budget)
    rows = math.ceil(num_rows / math.ceil(num_rows / (fit * len(devices))))
    mesh, padded = compiling.mesh_for(rows, devices)
    return plan._replace(mesh=mesh, rows=rows, padded=padded)


def too_much(rows: int, fixed: bool, needed: float, budget: float) -> UsageError:
    """That `rows` rows take more than there is: those that a run has to train at once, or any; `needed` may be inf."""
    what = f"{rows} seeds, which this run trains at once, take" if fixed else "one seed takes"
    size = "" if needed == math.inf else f"about {needed / (1 if fixed else rows) / 1e6:,.0f} MB, "
    return UsageError(
        f"{what} {size}more than the {budget / 1e6:,.0f} MB there are; a smaller rollout, replay buffer, population or "
        "network would take less"
    )
