"""Two steps: what a person filled in is shown as what it comes to, and just that can be confirmed.

The token of the confirmation is about all that was filled in and about the preview: who confirms something else, or
something that nobody was shown, is refused. A preview that is no longer true is shown anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_guard.pages.forms.posted import Posted, show, tokens_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import HTMLResponse

    from airflow_guard.pages.page import Page


@dataclass(frozen=True)
class Form:
    """One form.

    :param name: of its tokens.
    :param fields: what a person fills in, without ledger and step.
    """

    name: str
    fields: tuple[str, ...]

    def check(self, sent: Posted) -> None:
        """Do nothing if this user was shown this form, or the preview of just this.

        :raises Refused: 403.
        """
        if sent.confirmed:
            sent.check_token(
                f"{self.name} confirmed", self._sealed(sent.ledger, self._filled(sent), sent.text("seen"))
            )
        else:
            sent.check_token(self.name, "")

    def ask(
        self, page: Page, template: str, *, sent: Posted | None = None, problem: str = "", **values: Any
    ) -> HTMLResponse:
        """Return the form.

        :param sent: what was sent, to be corrected.
        :param problem: why it was not accepted.
        """
        given = {name: sent.text(name) if sent else page.text(name) for name in self.fields}
        ledger = sent.ledger if sent else page.ledger
        return show(
            page, template, self.name, "", status=422 if problem else 200, given=given, problem=problem, ledger=ledger,
            **values,
        )  # fmt: skip

    def preview(
        self,
        sent: Posted,
        template: str,
        plan: Any,
        /,
        *,
        changed: str = "",
        filled: Mapping[str, list[str]] | None = None,
        **values: Any,
    ) -> HTMLResponse:
        """Return the preview.

        :param plan: what it comes to, as plain values.
        :param changed: what has changed since the preview that was confirmed (409).
        :param filled: what is sent with the confirmation in place of what was filled in.
        """
        page, seen = sent.page, digest(plan)
        every = {**self._filled(sent), **(filled or {})}
        version = self._sealed(sent.ledger, every, seen)
        token = tokens_of(page).issue(page.caller.id, f"{self.name} confirmed", version)
        hidden = [(name, value) for name, some in every.items() for value in some]
        hidden += [("ledger", sent.ledger), ("seen", seen), ("token", token), ("step", "confirm")]
        return page.render(
            template, status=409 if changed else 200, hidden_fields=hidden, changed=changed, ledger=sent.ledger,
            sent=sent, **values,
        )  # fmt: skip

    def _filled(self, sent: Posted) -> dict[str, list[str]]:
        return {name: sent.all(name) for name in self.fields}

    def _sealed(self, ledger: str, filled: Mapping[str, list[str]], seen: str) -> str:
        return digest(ledger, sorted(filled.items()), seen)


def is_as_seen(sent: Posted, plan: Any) -> bool:
    """Return whether what would be done now is what the preview showed."""
    return sent.text("seen") == digest(plan)


def digest(*parts: Any) -> str:
    """Return 32 hex characters that stand for plain values."""
    text = json.dumps(parts, default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
