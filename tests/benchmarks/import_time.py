"""What ``import forebay`` adds to a bare interpreter: medians over fresh processes, bytecode warm.

    python tests/benchmarks/import_time.py [--runs 10] [--json]

The promise is under 80 ms. Not a test: a busy machine would fail it. What is imported is tested in
``tests/core/test_import.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

STATEMENTS = {
    "bare": "pass",
    "import forebay": "import forebay",
    "open_downloader('memory://x')": "import forebay; forebay.open_downloader('memory://x')",
}


def measure(runs: int) -> dict[str, float]:
    """Median milliseconds of each statement, process start included; the statements take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for run in range(runs + 1):
        for name, code in STATEMENTS.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            if run:  # the first round writes bytecode
                seconds[name].append(time.perf_counter() - begin)
    return {name: 1000 * statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    medians = measure(arguments.runs)
    added = {name: value - medians["bare"] for name, value in medians.items()}
    if arguments.json:
        print(json.dumps({"version": 1, "runs": arguments.runs, "median_ms": medians, "added_ms": added}))
        return
    for name, value in medians.items():
        print(f"{name:32} {value:8.1f} ms  {added[name]:+8.1f} ms")


if __name__ == "__main__":
    main()
