#!/usr/bin/env python3
"""Counts what ctest ran: prints the slowest tests, and last `N passed, N failed, N skipped`, over the
given JUnit files.

A test program made with cmocka counts as many as it has tests, each passed, failed or skipped; one
that fails without saying which of its tests did (a crash, a leak found at exit) counts one failure
more. Any other test counts one. Exit code 1 if anything failed, or if nothing was run.
"""

import re
import sys
import xml.etree.ElementTree

SLOWEST = 10
CMOCKA = re.compile(r"^\[==========\].*Running \d+ test\(s\)", re.M)


def count_cmocka(output):
    """Passed, failed and skipped by what cmocka prints: a line as each test ends, and a summary,
    which a program that crashed lacks."""
    def lines(mark):
        return {name for name in re.findall(rf"^\[ *{mark} *\] (\S+)$", output, re.M)}

    failed = lines("(?:FAILED|ERROR)")
    skipped = lines("SKIPPED") - failed
    summary = re.findall(r"^\[ *PASSED *\] (\d+) test\(s\)", output, re.M)
    passed = sum(map(int, summary)) if summary else len(lines("OK") - failed - skipped)
    return [passed, len(failed), len(skipped)]


def count(case):
    output = case.findtext("system-out") or ""
    status = case.get("status")
    if status == "run" or status == "fail":
        bad = status == "fail"
        counts = count_cmocka(output) if CMOCKA.search(output) else [0, 0, 0]
        if bad and not counts[1]:
            counts[1] = 1
        elif not bad and not sum(counts):
            counts[0] = 1
        elif not bad and counts[1]:
            sys.exit(f"error: {case.get('name')} passed although tests of it failed:\n{output}")
        return counts
    if case.find("skipped") is not None and "SKIP" in case.find("skipped").get("message", ""):
        return [0, 0, 1]
    return [0, 1, 0]  # not found, disabled, or not run because what it needs failed


def main():
    total, times = [0, 0, 0], []
    for path in sys.argv[1:]:
        try:
            cases = xml.etree.ElementTree.parse(path).getroot().iter("testcase")
        except (OSError, xml.etree.ElementTree.ParseError) as reason:
            print(f"{path}: {reason}", file=sys.stderr)
            total[1] += 1
            continue
        for case in cases:
            times.append((float(case.get("time") or 0), case.get("name"), path))
            counts = count(case)
            total = [a + b for a, b in zip(total, counts)]
            if counts[2]:
                print(f"skipped: {case.get('name')} ({counts[2]} in {path})")
    print(f"slowest of {len(times)} tests, {sum(time for time, *_ in times):.0f} s one after the other:")
    for time, name, path in sorted(times, reverse=True)[:SLOWEST]:
        print(f"{time:8.1f} s  {name} ({path})")
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
