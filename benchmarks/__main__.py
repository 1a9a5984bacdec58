"""Run the benchmarks and print the table (``make bench``).

``--rows N`` sets the size of the large ledger (default 1,000,000; the published figures use 10,000,000),
``--reconcile-rows N`` that of each side of a reconciliation (default 5,000,000);
``--write`` puts the table into ``docs/benchmarks.md``; ``--only NAME`` runs a part.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import airflow_cost, distributed, effects, monitoring, partitions, reconcile, size
from benchmarks.replay import replay
from benchmarks.setting import Measured, Setting, setting

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
PARTS = ("one", "batch", "external", "external16", "replay", "airflow", "memory", "size", "partitions", "monitoring", "celery",
         "reconcile", "reconcile-mariadb", "reconcile-text", "reconcile-changed", "reconcile-memory")  # fmt: skip


def measure(
    where: Setting, parts: list[str], rows: int, reconcile_rows: int
) -> tuple[list[Measured], list[tuple[str, float, float, str]]]:
    """Return the ratios, and the single figures (name, value, limit, unit)."""
    runs = {
        "one": lambda: [effects.database_one_by_one(where)],
        "batch": lambda: [effects.database_batches(where)],
        "external": lambda: [effects.external(where, 1, 1.2, 1_000)],
        "external16": lambda: [effects.external(where, 16, 1.8, 4_000)],
        "replay": lambda: [replay(where)],
        "size": lambda: [size.large_ledger(where, rows)],
        "reconcile": lambda: reconcile.postgres(where, reconcile_rows),
        "reconcile-mariadb": lambda: reconcile.mariadb(where, reconcile_rows),
        "reconcile-text": lambda: reconcile.text(where, reconcile_rows),
        "reconcile-changed": lambda: reconcile.changed(where, reconcile_rows),
    }
    ratios, figures = [], []
    for part in parts:
        if part == "airflow":
            plain, guarded = airflow_cost.task_overhead_ms(str(where.ledger.database.url))
            sdk, ours = airflow_cost.import_ms()
            figures.append(("task over PythonOperator, dag.test()", guarded - plain, 30.0, "ms"))
            figures.append(("import airflow_guard over airflow.sdk", ours - sdk, 20.0, "ms"))
        elif part == "partitions":
            for what, measured in partitions.large(where, rows):
                print(f"| {what} | {measured} |")
        elif part == "celery":
            print("\n".join(distributed.table()))
        elif part == "memory":
            figures.append(("1,000,000 documents from a generator, peak", size.memory(), 200.0, "MB"))
        elif part == "monitoring":
            figures += monitoring.questions_and_pages(where, rows)
        elif part == "reconcile-memory":
            peak = reconcile.memory(where, reconcile_rows)
            figures.append((f"reconcile {reconcile_rows:,} rows, half differ, peak", peak, 150.0, "MB"))
        else:
            ratios += runs[part]()
        print(f"{part}: done", file=sys.stderr)
    return ratios, figures


def table(ratios: list[Measured], figures: list[tuple[str, float, float, str]]) -> list[list[str]]:
    """Return the rows of the table."""
    rows = [
        [m.name, m.limit, f"{m.hand:,.1f}", f"{m.ours:,.1f}", m.unit, f"{m.ratio:.2f}", f"≥ {m.wanted:.2f}",
         "yes" if m.met else "no"]
        for m in ratios
    ]  # fmt: skip
    rows += [
        [name, "", "", f"{value:,.1f}", unit, "", f"≤ {limit:,.0f}", "yes" if value <= limit else "no"]
        for name, value, limit, unit in figures
    ]
    return rows


HEAD = ["what", "compared with", "by hand", "airflow_guard", "unit", "ratio", "wanted", "met"]


def write(rows: list[list[str]]) -> None:
    """Put the table between the marks of the page."""
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    text = "\n".join("| " + " | ".join(row) + " |" for row in lines)
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, 2 cores"
    block = f'<!-- table -->\n\n{where}; `make bench BENCH_ARGS="{" ".join(sys.argv[1:])}"`\n\n{text}\n\n<!-- end -->'
    page = PAGE.read_text()
    PAGE.write_text(re.sub(r"<!-- table -->.*<!-- end -->", lambda _: block, page, flags=re.DOTALL))


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--reconcile-rows", type=int, default=5_000_000)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with setting() as where:
        ratios, figures = measure(
            where, arguments.only or list(PARTS), arguments.rows, arguments.reconcile_rows
        )
    rows = table(ratios, figures)
    shown = Table(*HEAD)
    for row in rows:
        shown.add_row(*row)
    Console(width=150).print(shown)
    if arguments.write:
        write(rows)


if __name__ == "__main__":
    main()
