"""Many trips of a loop at once: the same counts as step by step, whatever a loop does."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.support import gemm
from emulator.test_compiled import needs_machine_code, program
from ladder.emulator import EmulatorError, compiled, sass
from ladder.emulator.compiled import (
    INSTRUCTIONS,
    CompiledCounts,
    Unknown,
    count_gemm,
    count_program,
)
from ladder.emulator.trips import GuessError, Trips, guess

# A pointer (at 0x210), then N (at 0x218). R2:R3 is the address, R4 the trip, R5 the thread.
HEAD = """
    .target sm_90a
.text.loop:
        /*0000*/                   S2R R5, SR_TID.X ;
        /*0010*/                   MOV R2, c[0x0][0x210] ;
        /*0020*/                   MOV R3, c[0x0][0x214] ;
        /*0030*/                   MOV R4, RZ ;
        /*0040*/                   IMAD.WIDE R2, R5, 0x4, R2 ;
        /*0050*/                   MOV R6, RZ ;
        /*0060*/                   MOV R7, RZ ;
.L_x_0:
"""
TAIL = """
        /*0900*/                   IADD3 R4, R4, 0x1, RZ ;
        /*0910*/                   ISETP.GE.AND P0, PT, R4, c[0x0][0x218], PT ;
        /*0920*/              @!P0 BRA `(.L_x_0) ;
        /*0930*/                   STG.E desc[UR4][R2.64], R4 ;
        /*0940*/                   STS [R6], R4 ;
        /*0950*/                   EXIT ;
"""
ADVANCE = """
        /*0100*/                   LDG.E R9, desc[UR4][R2.64] ;
        /*0110*/                   FFMA R8, R9, R9, R8 ;
        /*0120*/                   IADD3 R2, P1, R2, {stride:#x}, RZ ;
        /*0130*/                   IADD3.X R3, RZ, R3, RZ, P1, !PT ;
"""
BODIES = {
    # multiples of a sector or not: each trip touches other sectors
    **{f"stride {stride}": ADVANCE.format(stride=stride) for stride in (4, 20, 32, 36, 128)},
    "carry": ADVANCE.format(stride=0x4000_0000),
    "turns of two": """
        /*0100*/                   IMAD R10, R5, 0x8, R6 ;
        /*0110*/                   LDS.64 R12, [R10+0x10] ;
        /*0120*/                   LOP3.LUT R6, R6, 0x84, RZ, 0x3c, !PT ;
""",
    "turns of three": """
        /*0100*/                   IADD3 R6, R6, 0x4, RZ ;
        /*0110*/                   ISETP.GE.AND P2, PT, R6, 0xc, PT ;
        /*0120*/                   SEL R6, RZ, R6, P2 ;
        /*0130*/                   IMAD R10, R5, R6, R6 ;
        /*0140*/               @P2 LDS R12, [R10] ;
""",
    "squares": """
        /*0100*/                   IMAD R10, R4, R4, RZ ;
        /*0110*/                   IMAD R6, R10, R5, R6 ;
        /*0120*/                   LOP3.LUT R10, R6, 0xfffc, RZ, 0xc0, !PT ;
        /*0130*/                   LDS R12, [R10] ;
""",
    "another way from a trip on": """
        /*0100*/                   ISETP.LT.AND P2, PT, R4, 0x19, PT ;
        /*0110*/               @P2 BRA `(.L_x_1) ;
        /*0120*/                   LDS R12, [R6] ;
.L_x_1:
        /*0130*/                   FFMA R8, R9, R9, R8 ;
""",
    "threads leave one by one": """
        /*0100*/                   ISETP.GT.AND P2, PT, R4, R5, PT ;
        /*0110*/               @P2 EXIT ;
        /*0120*/                   LDG.E R9, desc[UR4][R2.64] ;
""",
    "threads part and meet": """
        /*0100*/                   LOP3.LUT R10, R4, R5, RZ, 0x3c, !PT ;
        /*0110*/                   LOP3.LUT P2, RZ, R10, 0x10, RZ, 0xc0, !PT ;
        /*0120*/               @P2 BRA `(.L_x_1) ;
        /*0130*/                   LDG.E R9, desc[UR4][R2.64] ;
.L_x_1:
        /*0140*/                   FFMA R8, R9, R9, R8 ;
""",
    "predicated": """
        /*0100*/                   LOP3.LUT R10, R4, 0x1, RZ, 0xc0, !PT ;
        /*0110*/                   ISETP.EQ.AND P2, PT, R10, RZ, PT ;
        /*0120*/                   ISETP.LT.AND P2, PT, R5, 0x14, P2 ;
        /*0130*/               @P2 LDG.E R9, desc[UR4][R2.64+0x4] ;
        /*0140*/               @P2 IADD3 R2, P1, R2, 0x24, RZ ;
""",
    "a loop within": """
        /*0100*/                   MOV R7, RZ ;
.L_x_2:
        /*0110*/                   LDG.E R9, desc[UR4][R2.64] ;
        /*0120*/                   IADD3 R2, P1, R2, 0x14, RZ ;
        /*0130*/                   IADD3 R7, R7, 0x1, RZ ;
        /*0140*/                   ISETP.LE.AND P2, PT, R7, {trips}, PT ;
        /*0150*/               @P2 BRA `(.L_x_2) ;
""",
}
BODIES["a growing loop within"] = BODIES["a loop within"].format(trips="R4")
BODIES["a loop within"] = BODIES["a loop within"].format(trips="0xd")


def both(body: str, trips: int, threads: int = 40) -> list[CompiledCounts]:
    code = sass.parse(HEAD + body + TAIL, "loop", 0x210)
    return [
        count_program(
            code, (3, 1, 1), (threads, 1, 1), [np.zeros(1, np.float32), trips], many_trips=many
        )
        for many in (True, False)
    ]


@pytest.mark.parametrize("trips", [1, 3, 4, 12, 61, 300])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_many_trips_at_once_count_as_step_by_step(body: str, trips: int) -> None:
    at_once, by_step = both(body, min(trips, 61) if "R7, R4" in body else trips)
    assert at_once == by_step  # counters, lines and the number of instructions


def test_every_instruction_counts_for_every_warp() -> None:
    """Three blocks of 40 threads have six warps, and none leaves the others in this loop."""
    counted = both(BODIES["stride 32"], 12)[0]
    assert counted.counters[INSTRUCTIONS] == 6 * counted.instructions
    assert counted.instructions > 12


def test_a_loop_is_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass too if no loop ever were."""
    seen: list[int] = []
    proved = Trips.proved

    def watched(self: Trips) -> int:
        seen.append(proved(self))
        return seen[-1]

    monkeypatch.setattr(Trips, "proved", watched)
    for name in ("stride 36", "turns of two", "turns of three", "predicated", "a loop within"):
        seen.clear()
        both(BODIES[name], 300)
        assert max(seen) > 30, name


def test_what_depends_on_data_is_refused_as_step_by_step() -> None:
    body = """
        /*0100*/                   LDG.E R9, desc[UR4][R2.64] ;
        /*0110*/                   ISETP.GE.AND P2, PT, R4, 0x28, PT ;
        /*0120*/               @P2 BRA `(.L_x_1) ;
        /*0130*/                   BRA `(.L_x_3) ;
.L_x_1:
        /*0140*/                   LDG.E R10, desc[UR4][R9.64] ;
.L_x_3:
        /*0150*/                   NOP ;
"""
    assert both(body, 40)[0].counters
    with pytest.raises(EmulatorError, match=r"'LDG.E R10.* depends on 'LDG.E R9"):
        both(body, 60)


def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_MOST_STEPS", 100_000)
    with pytest.raises(EmulatorError, match="does not come to an end"):
        both(BODIES["stride 32"], 2**31 - 1, threads=32)


@needs_machine_code
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_120"])
@pytest.mark.parametrize(
    ("kernel", "params"),
    [
        ("01_naive", {"BLOCK_X": 16, "BLOCK_Y": 16}),
        ("01_naive", {"BLOCK_X": 32, "BLOCK_Y": 8}),
        ("register_tile", {}),
        ("async_double_buffer", {"A_PAD": 8}),
        ("warp_broadcast", {}),
    ],
)
@pytest.mark.parametrize("size", [(64, 192, 160), (65, 129, 173)])
def test_kernels_count_as_step_by_step(
    kernel: str, params: dict[str, int], architecture: str, size: tuple[int, int, int]
) -> None:
    what = gemm(kernel, params)
    code = program(what.source, tuple(params.items()), "gemm", architecture)
    launch = what.launch(*size[:2])
    at_once, by_step = (
        count_gemm(code, launch.grid, launch.block, *size, many_trips=many)
        for many in (True, False)
    )
    assert at_once == by_step


def test_guesses() -> None:
    lanes = np.arange(4)
    for seen, expected in (
        ([lanes * 0, lanes, lanes * 2], [lanes * 2, lanes * 3, lanes * 4]),
        ([np.array(n % 2) for n in range(4)], [[1], [0], [1]]),
        ([np.array(n % 3 + n // 3 * 10) for n in range(7)], [[20], [21], [22]]),
        ([np.array(2**32 - 8), np.array(2**32 - 4), np.array(0)], [[0], [4], [8]]),
        ([np.array(n % 2 == 0) for n in range(5)], [[True], [False], [True]]),
    ):
        found = guess(seen)
        assert found is not None
        assert np.array_equal(found.starts(2), expected)
    constant = guess([lanes, lanes, lanes.copy()])
    assert constant is not None and np.array_equal(constant.starts(5), lanes)
    assert guess([np.array(n * n) for n in range(6)]) is None
    assert guess([Unknown("a"), Unknown("a"), Unknown("b")]) is None
    assert guess([lanes, lanes, Unknown("b")]) is None


def test_a_wrong_guess_is_found_out() -> None:
    history = [{"R1": np.array(n), "R2": np.array(n * n)} for n in range(3)]
    trips = Trips(history, 8)
    trips["R1"] = np.minimum(trips.get("R1") + 1, 5)  # from 2: right until it stays at 5
    assert trips.proved() == 4
    assert [int(trips.after(trip)["R1"]) for trip in range(4)] == [3, 4, 5, 5]
    with pytest.raises(GuessError):
        Trips(history, 8).get("R2")
    absent = Trips(history, 8)
    assert absent.get("R3") is None
    absent["R3"] = np.array(1)  # it is there for the second trip
    assert absent.proved() == 1
