#!/usr/bin/env python3
"""Runs the tests that let allocations fail, in a build with MC_FAULT_INJECTION, and counts the failures.

    count_faults.py BUILD

A failure counts once, whether one allocation failed or all after it too. Run by hand: some minutes."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).parent


def programs():
    """The names of the tests whose sources ask for failures."""
    return sorted(path.stem for path in TESTS.glob("**/test_*.c")
                  if re.search(r"mc_fault_fail_at|tests/faults\.h", path.read_text()))


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="mc-faults-") as folder:
        report = pathlib.Path(folder) / "report"
        ended = subprocess.run(["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error", "-R",
                                f"^({'|'.join(programs())})$"], env={**os.environ, "MC_FAULT_REPORT": str(report)},
                               check=False)
        if ended.returncode or not report.exists():
            sys.exit(f"{build}: the tests failed, or the build has no MC_FAULT_INJECTION")
        counts = [line.split() for line in report.read_text().splitlines()]
    print(f"{sum(int(count) for count, _ in counts)} allocations failed, in turn, in {len({name for _, name in counts})} "
          "test programs: all tests passed")


if __name__ == "__main__":
    main()
