"""An alert's way to a person: a line in a file."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from collections.abc import Sequence

ALERTS_FILE = "CHAOS_ALERTS"


class Paper(BaseNotifier):
    """Writes down what it is told, as one line of JSON."""

    template_fields: Sequence[str] = ("subject", "text", "run_id", "map_index")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.subject = "{{ alert.subject }}"
        self.text = "{{ alert.text }}"
        self.run_id = "{{ alert.run_id }}"
        self.map_index = "{{ alert.map_index }}"

    def notify(self, context: Any) -> None:  # noqa: ARG002 - Airflow's signature
        """Append one line. One write, so that lines of several processes do not mix."""
        said = {name: getattr(self, name) for name in self.template_fields}
        line = json.dumps({"at": datetime.now(UTC).isoformat(), **said}) + "\n"
        file = os.open(Path(os.environ[ALERTS_FILE]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
