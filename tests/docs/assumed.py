"""What the pages take for granted: functions and systems of a bank that is not shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date
    from pathlib import Path


class Bank:
    """A receiver that recognises a repeated key."""

    def __init__(self) -> None:
        self.paid: dict[str, Any] = {}

    def pay(self, order: Any, idempotency_key: str) -> dict[str, Any]:
        self.paid.setdefault(idempotency_key, order)
        return {"id": idempotency_key, "status": "booked"}

    def find(self, idempotency_key: str) -> dict[str, Any] | None:
        return {"status": "booked"} if idempotency_key in self.paid else None


def statements_of(business_date: date) -> Iterator[dict[str, Any]]:
    """List the statements of a day."""
    for number in (1, 2, 3):
        no = f"{business_date:%y%m%d}-{number}"
        yield {"statement_no": no, "lines": [{"statement_no": no, "amount": "1.00"}]}


def post_statement(payload: dict[str, Any], connection: Any) -> dict[str, Any]:
    """Post a statement."""
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS posted (statement_no TEXT)")
    connection.exec_driver_sql(f"INSERT INTO posted VALUES ('{payload['statement_no']}')")
    return {"lines": len(payload["lines"])}


def names(folder: Path) -> dict[str, Any]:
    """Return the names with which the snippets of a page begin.

    :param folder: an empty one, for what a page writes.
    """
    bank = Bank()
    return {
        "__name__": "a_page_of_the_docs",
        "bank": bank,
        "bank_folder": str(folder),
        "statements_of": statements_of,
        "post_statement": post_statement,
        "posted_statements": statements_of,
        "payment_order": lambda batch_id, documents: repr((batch_id, documents)).encode(),
        "build_order": dict,
        "archive": lambda order, receipt: None,
        "mailer": bank,
    }
