"""Draws docs/timeline.svg: four processes on one file lock, as they really took turns in a run made for the picture."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "docs" / "timeline.svg"
PROCESSES, TURNS = 4, 4
LEFT, WIDTH, LANE, TOP = 110, 850, 46, 62
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]


def work(folder: str, number: int) -> None:
    """One process: prints when each wait began, when the lock was got, and when it was given back."""
    from holdfast import Locks

    dice = random.Random(number)
    locks = Locks.from_url(Path(folder).as_uri())
    print("ready", flush=True)
    sys.stdin.read()
    for _ in range(TURNS):
        time.sleep(dice.uniform(0, 0.02))
        asked = time.monotonic()
        with locks.hold("entity"):
            got = time.monotonic()
            time.sleep(dice.uniform(0.004, 0.012))
            print(asked, got, time.monotonic(), flush=True)


def spans() -> list[list[tuple[float, float, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--work", folder]
        workers = [
            subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for number in range(PROCESSES)
        ]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        outputs = []
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.stdin = None
        for worker in workers:
            outputs.append(worker.communicate()[0])
    return [[tuple(map(float, line.split())) for line in output.splitlines()] for output in outputs]  # type: ignore[misc]


def draw(lanes: list[list[tuple[float, float, float]]]) -> str:
    start = min(lane[0][0] for lane in lanes)
    scale = WIDTH / (max(lane[-1][2] for lane in lanes) - start)

    def x(moment: float) -> float:
        return LEFT + (moment - start) * scale

    height = TOP + LANE * (len(lanes) + 1) + 40
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="15">',
        "<title>Four processes take turns on one lock</title>",
        f'<rect width="{LEFT + WIDTH + 20}" height="{height}" rx="8" fill="#fdfdfb" stroke="#ddd"/>',
        '<text x="20" y="32" font-size="18" font-weight="600" fill="#222">with locks.hold("entity"): '
        '<tspan font-weight="400" fill="#555">four processes, one writer at a time</tspan></text>',
    ]
    for number, lane in enumerate(lanes):
        middle = TOP + LANE * number + LANE / 2
        shapes.append(f'<text x="20" y="{middle + 5:.0f}" fill="#222">process {number + 1}</text>')
        shapes.append(f'<path d="M{LEFT} {middle}H{LEFT + WIDTH}" stroke="#e4e4e0"/>')
        for asked, got, done in lane:
            shapes.append(
                f'<path d="M{x(asked):.1f} {middle}H{x(got):.1f}" stroke="#999" stroke-width="3" '
                'stroke-dasharray="2 4"/>'
                f'<rect x="{x(got):.1f}" y="{middle - 13}" width="{max(2, (done - got) * scale):.1f}" height="26" '
                f'rx="4" fill="{COLOURS[number]}"/>'
            )
    below = TOP + LANE * len(lanes) + LANE / 2
    shapes.append(f'<text x="20" y="{below + 5:.0f}" font-weight="600" fill="#222">the entity</text>')
    for number, lane in enumerate(lanes):
        for _, got, done in lane:
            shapes.append(
                f'<rect x="{x(got):.1f}" y="{below - 8}" width="{max(2, (done - got) * scale):.1f}" height="16" '
                f'fill="{COLOURS[number]}"/>'
            )
    shapes.append(
        f'<text x="{LEFT}" y="{height - 14}" font-size="13" fill="#555">filled: holds the lock · dotted: waits, '
        "asleep, in the kernel's queue · drawn from a real run by scripts/draw_timeline.py</text>"
    )
    return "\n".join([*shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        TARGET.write_text(draw(spans()))
        print(f"drawn: {TARGET.name}")
