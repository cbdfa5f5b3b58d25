"""scripts/accelerator.py, on programs small enough to count by hand; what it has found stands in its page."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import accelerator
import page

# An update in a loop of unknown turns: a fusion, a collective, a loop of 10 turns with a library call and a copy of
# 2 MB, and a loop of unknown turns with one fusion, whose condition takes another.
GPU = """
HloModule jit_chunk, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %t = f32[4]{0} tanh(%p)
}

%inner_body (a: (s32[], f32[512,1000])) -> (s32[], f32[512,1000]) {
  %a = (s32[], f32[512,1000]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%a), index=0
  %x = f32[512,1000]{1,0} get-tuple-element(%a), index=1
  %gemm = f32[512,1000]{1,0} custom-call(%x), custom_call_target="__cublas$gemm"
  %copied = f32[512,1000]{1,0} copy(%gemm)
  ROOT %tuple.1 = (s32[], f32[512,1000]{1,0}) tuple(%i, %copied)
}

%inner_cond (b: (s32[], f32[512,1000])) -> pred[] {
  %b = (s32[], f32[512,1000]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %ten = s32[] constant(10)
  ROOT %lt = pred[] compare(%j, %ten), direction=LT
}

%open_body (c: (s32[], f32[4])) -> (s32[], f32[4]) {
  %c = (s32[], f32[4]{0}) parameter(0)
  %k = s32[] get-tuple-element(%c), index=0
  %y = f32[4]{0} get-tuple-element(%c), index=1
  %step = f32[4]{0} fusion(%y), kind=kLoop, calls=%fused
  ROOT %tuple.2 = (s32[], f32[4]{0}) tuple(%k, %step)
}

%open_cond (d: (s32[], f32[4])) -> pred[] {
  %d = (s32[], f32[4]{0}) parameter(0)
  %y.1 = f32[4]{0} get-tuple-element(%d), index=1
  ROOT %any = pred[] fusion(%y.1), kind=kInput, calls=%fused
}

%update (e: (s32[], f32[4], f32[512,1000])) -> (s32[], f32[4], f32[512,1000]) {
  %e = (s32[], f32[4]{0}, f32[512,1000]{1,0}) parameter(0)
  %y.2 = f32[4]{0} get-tuple-element(%e), index=1
  %first = f32[4]{0} fusion(%y.2), kind=kLoop, calls=%fused
  %summed = f32[4]{0} all-reduce(%first), to_apply=%fused
  %in = (s32[], f32[512,1000]{1,0}) tuple(%y.2, %y.2)
  %loop = (s32[], f32[512,1000]{1,0}) while(%in), condition=%inner_cond, body=%inner_body, KNOWN
  %in.2 = (s32[], f32[4]{0}) tuple(%y.2, %summed)
  %open = (s32[], f32[4]{0}) while(%in.2), condition=%open_cond, body=%open_body
  ROOT %tuple.3 = (s32[], f32[4]{0}, /*index=2*/f32[512,1000]{1,0}) tuple(%y.2, %y.2, %y.2)
}

%more (f: (s32[], f32[4], f32[512,1000])) -> pred[] {
  %f = (s32[], f32[4]{0}, f32[512,1000]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%f), index=0
  ROOT %lt.2 = pred[] compare(%n, %n), direction=LT
}

ENTRY %main (g: (s32[], f32[4], f32[512,1000])) -> (s32[], f32[4], f32[512,1000]) {
  %g = (s32[], f32[4]{0}, f32[512,1000]{1,0}) parameter(0)
  %start = f32[512,1000]{1,0} copy(%g)
  ROOT %updates = (s32[], f32[4]{0}, f32[512,1000]{1,0}) while(%g), condition=%more, body=%update
}
"""
KNOWN = 'backend_config={"known_trip_count":{"n":"10"}}'


@pytest.mark.parametrize("known", [KNOWN, "frontend_attributes={}"])  # XLA says the turns for GPUs, not for TPUs
def test_launches_are_counted_by_turns(known):
    program = accelerator.Program(GPU.replace("KNOWN", known))
    update = program.body_of_update()
    assert update == "update"
    assert program.launches(update) == (1 + 1 + 10 * 2, (1 + 1,))
    assert program.launches() == (1, (22 + 1, 2))  # the comparison of the outer loop is one too
    assert program.loops(update) == [(10, 2), (None, 1)]


def test_copies_in_loops_and_collectives_are_found():
    program = accelerator.Program(GPU.replace("KNOWN", KNOWN))
    assert program.copies("update") == {"f32[512,1000]": 10}  # and not the one before all updates
    assert program.collectives == 1
    assert accelerator.Program(GPU.replace("512,1000", "4,5")).copies("update") == {}
    assert accelerator.Program(GPU.replace("all-reduce", "negate")).collectives == 0


GOOD = {"collectives": 0, "buffer_copies": 0, "bytes": 1.2, "plan": 1.0}


@pytest.mark.parametrize(
    ("changed", "seeds", "said"),
    [
        ({}, 4096, []),
        ({"collectives": 2}, 8, ["2 collectives"]),
        ({"buffer_copies": 400}, 8, ["400 copies of the replay buffer in an update"]),
        ({"bytes": 1.3}, 128, ["1.30 x the planned memory"]),
        ({"bytes": 1.3}, 8, []),  # mostly not of the seeds
        ({"error": "RESOURCE_EXHAUSTED"}, 8, ["RESOURCE_EXHAUSTED"]),
    ],
)
def test_what_must_not_be_is_said(changed, seeds, said):
    assert accelerator.wrong(GOOD | changed, seeds) == said


def test_the_page_has_what_was_found():
    results = json.loads(accelerator.RESULTS.read_text())
    for part in ("now", "before"):
        assert accelerator.table(results[part], part) == page.read(accelerator.RESULTS.with_suffix(".md"), part)
        assert len(results[part]) == len(accelerator.DEVICES) * len(accelerator.AGENTS) * len(accelerator.CASES)
    found = results["now"]
    assert [x for name, row in found.items() for x in accelerator.wrong(row, int(name.split("/")[3]))] == []
    # What was aimed at on an H100.
    assert all(found[f"h100/ppo/CartPole-v1/{n}"]["launches"] <= 2300 for n in (8, 512))
    assert found["h100/dqn/CartPole-v1/8"]["launches"] <= 4500
    assert all(found[f"h100/cem/CartPole-v1/{n}"]["per_step"] <= 9 for n in (512, 4096))
    assert all(found[f"h100/cem/CartPole-v1/{n}"]["launches_in_turns"] == [] for n in (8, 512, 4096))  # no wait
    assert found["h100/ppo/CartPole-v1/4096"]["init"] <= 1000
