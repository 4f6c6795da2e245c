#!/usr/bin/env python3
"""figures.py FILE: rounds of a comparison, as lines `WHAT KIND RATE`, to a table: the median of each kind, its range over the rounds, and its ratio to
the better of ext4 and xfs, with the range of the ratios of single rounds."""
import statistics
import sys

rows = {}
for line in open(sys.argv[1], encoding="utf-8"):
    what, kind, rate = line.rsplit(None, 2)
    rows.setdefault(what, {}).setdefault(kind, []).append(float(rate))
print(f"{'a second':28} {'on':8} {'median':>9} {'range':>19} {'ratio':>6} {'of rounds':>13}")
ORDER = ("strict", "relaxed", "ext4", "xfs", "tmpfs")
for what, kinds in rows.items():
    peers = [rates for kind, rates in kinds.items() if kind in ("ext4", "xfs")]
    best = max(peers, key=statistics.median) if peers else None
    for kind, rates in sorted(kinds.items(), key=lambda one: ORDER.index(one[0])):
        line = f"{what:28} {kind:8} {statistics.median(rates):9.0f} {f'{min(rates):.0f}-{max(rates):.0f}':>19}"
        if best:
            ratios = [rate / peer for rate, peer in zip(rates, best)]
            line += f" {statistics.median(rates) / statistics.median(best):6.2f} {f'{min(ratios):.2f}-{max(ratios):.2f}':>13}"
        print(line)
