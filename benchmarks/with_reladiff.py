"""The same ten differences with reladiff, in a process of its own: it keeps connections open and threads running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlalchemy as sa


def seconds(source: sa.URL, target: sa.URL, expected: int) -> float:
    """Return how long reladiff takes with two threads, the better of two runs.

    :param expected: how many differences it must find.
    """
    given = json.dumps([_plain(source), _plain(target), expected])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.with_reladiff", given], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def _plain(url: sa.URL) -> dict[str, Any]:
    host = url.host or str(url.query.get("host", ""))
    common = {"host": host, "user": url.username, "password": url.password or ""}
    if url.get_backend_name() == "mysql":
        return {"driver": "mysql", "port": url.port or 3306, "database": url.database, **common}
    return {"driver": "postgresql", "port": url.port or 5432, "dbname": url.database, **common}


def _run(source: dict[str, Any], target: dict[str, Any], expected: int) -> None:
    from reladiff import connect_to_table, diff_tables

    times = []
    for _ in range(2):
        started = time.perf_counter()
        both = [
            connect_to_table(each, table, "document_no", extra_columns=("amount",), thread_count=2)
            for each, table in ((source, "source_side"), (target, "target_side"))
        ]
        found = list(diff_tables(*both, threaded=True, max_threadpool_size=2))
        times.append(time.perf_counter() - started)
        assert len(found) == expected, len(found)
    print(min(times), flush=True)
    os._exit(0)  # its threads would keep the process alive


if __name__ == "__main__":
    _run(*json.loads(sys.argv[1]))
