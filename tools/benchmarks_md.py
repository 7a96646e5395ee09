#!/usr/bin/env python3
"""Makes docs/benchmarks.md from the records in bench/results/*.json (the files that `rotunda bench --json` writes).

    benchmarks_md.py [--check]     --check: writes nothing, fails where the page is out of date
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Made by tools/benchmarks_md.py from bench/results/; do not edit. Times are medians in milliseconds, of the slowest rank.
A figure under a baseline's name is its time divided by ours, from the same run on the same machine: above 1 we are
faster. ideal_same_kernel is the same kernel's time for the whole problem on one GPU, the mean over the GPUs used, divided
by their number. err is the error divided by the naive algorithm's, both against float64: at most 2 is right.
"""

# Of records of a call's time on the host.
HOST_COLUMNS = {"library_us": "library us", "python_us": "python us", "autograd_us": "autograd us"}


def number(value, digits=3) -> str:
    return "–" if value is None else f"{value:.{digits}g}" if abs(value) < 100 else f"{value:.0f}"


def columns(records: list[dict]) -> list[str]:
    names = sorted({name for record in records for name in record.get("baselines") or {}})
    return ["problem", "ranks", "schedule", "kernel", "fwd ms", "bwd ms", "both ms", "fwd TFLOP/s", "bwd TFLOP/s",
            "err", "exposed ms", "peak MiB", *HOST_COLUMNS.values(),
            *(f"{name} {part}" for name in names for part in ("fwd", "both"))]


def row(record: dict, header: list[str]) -> list[str]:
    schedule, back = record.get("schedule") or "–", record.get("backward_schedule")
    errors = [ratio for ratio in (record.get("err_ratio") or {}).values() if ratio is not None]
    figures = [record.get(key) for key in ("fwd_ms", "bwd_ms", "both_ms", "fwd_tflops", "bwd_tflops")]
    peak = record.get("peak_bytes")
    figures += [max(errors, default=None), record.get("exposed_ms"), None if peak is None else peak / 2**20]
    graph = ", as a graph" if record.get("graph") else ""
    cells = [f"`{record['problem']}`", str(record["ranks"]),
             (schedule if back in (None, schedule) else f"{schedule} / {back}") + graph, record.get("kernel") or "–"]
    cells += [number(figure) for figure in figures] + [number(record.get(key)) for key in HOST_COLUMNS]
    for column in header[len(cells):]:
        name, part = column.rsplit(" ", 1)
        cells.append(number((record.get("baselines") or {}).get(name, {}).get(part)))
    return cells


def table(records: list[dict]) -> list[str]:
    header = columns(records)
    rows = [row(record, header) for record in records]
    keep = [i for i in range(len(header)) if any(cells[i] != "–" for cells in rows)]
    line = lambda cells: "| " + " | ".join(cells[i] for i in keep) + " |"
    return [line(header), line(["---"] * len(header)), *(line(cells) for cells in rows)]


def section(path: pathlib.Path) -> list[str]:
    records = json.loads(path.read_text(encoding="utf-8"))
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        versions = ", ".join(f"{name} {text}" for name, text in sorted((record.get("versions") or {}).items()))
        groups.setdefault((record.get("date"), record.get("device"), versions), []).append(record)
    lines = [f"## {path.stem}", ""]
    for (date, device, versions), group in groups.items():
        lines += [f"{date}, {device}: {versions}", "", *table(group), "", "Commands:", "", "```"]
        lines += list(dict.fromkeys(record.get("command", "") for record in group)) + ["```", ""]
    return lines


def main() -> int:
    lines = [HEAD]
    paths = sorted((ROOT / "bench" / "results").glob("*.json"))
    for path in paths:
        lines += section(path)
    if not paths:
        lines.append("No record has been made yet: `./dev bench` makes bench/results/cpu.json.")
    text = "\n".join(lines).rstrip() + "\n"
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            print("docs/benchmarks.md is out of date: run ./dev docs", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
