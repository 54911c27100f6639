"""How often the answer checker is right, kind by kind, beside what huggingface/Math-Verify 0.9.0 decides.

    python bench/verdicts.py ../shared/answers/peer_cases.jsonl

A line of the file: gold, pred (a bare answer, or a whole output where "completion" is true), equal, kind, and
"arguable" where a verdict is a matter of policy; such a line is not scored. The peer's shares are those of the
README beside the file, measured on the same clear cases; it took 6.6 ms a verdict (median), 5.2 s at most.
Every wrong verdict is printed. Exit code 1 if there is a false positive.
"""
import argparse
import os
import sys
import time
from collections import defaultdict
from statistics import median

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from common import answers_equal, check_answer, extract_answer, read_json  # noqa: E402

PEER = dict(
    extraction=.930, choice=.684, mixed_number=.900, latex_format=1, inequality=1, degrees=.889, set=.964, fraction=.941,
    plusminus=1, tuple=.963, matrix=1, currency=1, huge=1, sqrt=.920, percent=.929, complex=1, thousands=.792, text=1,
    units=1, hash=1, integer=1, interval=.913, hostile=1, trig=1, base=1, sci_notation=1, expression=1, union=1, decimal=1,
    approx=1, ratio=1, time=1, factorial=1, empty=1, equation=.952, pi=.500, unicode=.500, assignment=.900)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", help="JSON lines with gold, pred, equal, kind")
    cases = [case for _, case in read_json(parser.parse_args(argv).cases) if not case.get("arguable")]
    kinds, seconds, false_positives = defaultdict(list), [], 0
    for case in cases:
        check, start = check_answer if case.get("completion") else answers_equal, time.perf_counter()
        verdict = check(case["pred"], case["gold"])
        seconds.append((time.perf_counter() - start, case))
        kinds[case["kind"]].append(verdict == case["equal"])
        if verdict != case["equal"]:
            shown = extract_answer(case["pred"]) if case.get("completion") else case["pred"]
            print(f"false {'positive' if verdict else 'negative'}, {case['kind']}: {case['gold']!r}, {shown!r}")
            false_positives += verdict
    print(f"{'kind':<14}{'n':>5}{'right':>7}{'share':>8}{'peer':>8}")
    for kind, right in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{kind:<14}{len(right):>5}{sum(right):>7}{sum(right) / len(right):>8.3f}{PEER.get(kind, float('nan')):>8.3f}")
    right = sum(map(sum, kinds.values()))
    print(f"{'all':<14}{len(cases):>5}{right:>7}{right / len(cases):>8.3f}{.934:>8.3f}   {false_positives} false positives")
    times = sorted(s for s, _ in seconds)
    slowest = max(seconds, key=lambda pair: pair[0])
    print(f"ms a verdict: {1e3 * median(times):.2f} median, {1e3 * times[int(.95 * len(times))]:.2f} at 95 %, "
          f"{1e3 * times[-1]:.2f} slowest ({slowest[1]['pred'][:60]!r})")
    return int(false_positives > 0)


if __name__ == "__main__":
    raise SystemExit(main())
