"""What a listing should bring: how many documents, which total, and what to do if it brings something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_guard.core.amounts import amount_of, shown
from airflow_guard.core.errors import AmountError, ConfigurationError, UnexpectedListing

if TYPE_CHECKING:
    from airflow_guard.core.documents import Document
    from airflow_guard.core.parameters import Otherwise

Total: TypeAlias = int | Decimal
Computed: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a listing should bring.

    >>> Expected(least=1, most=500).describe()
    '1 to 500 documents'
    >>> Expected(least=3, most=3, total=1250, amount="cents").describe()
    '3 documents with cents of 1250 in all'

    Every mention in the list counts, also one that is repeated or refused: a file's control record counts so.

    :param least: so many documents, or more. Default: any number.
    :param most: so many documents, or fewer. Default: any number.
    :param total: what ``amount`` of all documents comes to: a ``Decimal``, an ``int``, or a callable that is called like
        ``documents`` and returns one of them (``None``: no total for this date). Never a float.
    :param amount: the field of a mapping document that is added up: ``Decimal``, ``int``, or text with a plain decimal
        number. Required with ``total``.
    :param otherwise: ``"fail"`` (default): another listing fails the task before its first effect; ``"warn"``: it says so.
    :raises ConfigurationError: a value or combination that cannot work.
    """

    least: int | None = None
    most: int | None = None
    total: Total | Computed | None = None
    amount: str | None = None
    otherwise: Otherwise = "fail"

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ConfigurationError(f"Expected({name}={value!r}): a whole number, at least 0.")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ConfigurationError(f"Expected(least={self.least}, most={self.most}): least is above most.")
        if self.least is None and self.most is None and self.total is None:
            raise ConfigurationError("Expected() says nothing: give least, most or total.")
        if self.otherwise not in ("fail", "warn"):
            raise ConfigurationError(f"Expected(otherwise={self.otherwise!r}): use 'fail' or 'warn'.")
        if self.total is not None and not callable(self.total):
            object.__setattr__(self, "total", exact_total(self.total))
        if (self.total is None) != (self.amount is None):
            raise ConfigurationError(
                "Expected: total and amount belong together: the sum, and the field of a document that is added up."
            )

    def describe(self) -> str:
        """Return it in words."""
        if self.total is None:
            return expected_words(self.least, self.most, None)
        value = shown(Decimal(self.total)) if isinstance(self.total, (int, Decimal)) else "as computed"
        return expected_words(self.least, self.most, f"{self.amount} of {value}")


def expected_words(least: int | None, most: int | None, total: str | None) -> str:
    """Return what was expected in words, empty if nothing was.

    >>> expected_words(1, None, "12.50"), expected_words(None, None, None)
    ('at least 1 document with 12.50 in all', '')
    """
    if least is None and most is None and total is None:
        return ""
    return _counted(least, most) + (f" with {total} in all" if total is not None else "")


def _counted(least: int | None, most: int | None) -> str:
    if least is None and most is None:
        return "documents"
    if least == most:
        return f"{least:,} document{'' if least == 1 else 's'}"
    if most is None:
        return f"at least {least:,} document{'' if least == 1 else 's'}"
    if least is None:
        return f"at most {most:,} document{'' if most == 1 else 's'}"
    return f"{least:,} to {most:,} documents"


def exact_total(value: object) -> Total:
    """Return a total that can be compared exactly.

    :raises ConfigurationError: a float, or no number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        hint = (
            " A float is not an exact amount: give a Decimal, or an int of minor units."
            if isinstance(value, float)
            else ""
        )
        raise ConfigurationError(f"The expected total is {value!r:.80}, neither a Decimal nor an int.{hint}")
    if isinstance(value, Decimal) and not value.is_finite():
        raise ConfigurationError(f"The expected total is {value}, which is no amount.")
    return value


def expected_of(value: object) -> Expected | None:
    """Return what ``expected=…`` of a task, or the callable given there, says.

    :raises ConfigurationError: it is neither a number nor an ``Expected``.
    """
    if value is None or isinstance(value, Expected):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Expected(least=value, most=value)
    raise ConfigurationError(
        f"expected={value!r:.80}: give a whole number, Expected(least=…, most=…, total=…, amount=…), or a callable of the "
        "business date that returns one of them."
    )


def expected_now(given: Any, call: Callable[[Computed], Any]) -> Expected | None:
    """Return what is expected of this try: functions are called.

    :param given: as the task has it.
    :param call: calls a function of the user's with what it may take.
    :raises ConfigurationError: what a function returned cannot be compared.
    """
    expected = expected_of(call(given) if callable(given) and not isinstance(given, Expected) else given)
    if expected is None or not callable(expected.total):
        return expected
    total = call(expected.total)
    if total is None and expected.least is None and expected.most is None:
        return None
    if total is None:
        return replace(expected, total=None, amount=None)
    return replace(expected, total=exact_total(total))


@dataclass
class Tally:
    """What a listing has brought so far.

    :param expected: ``None``: nothing was said about it.
    :param count: documents that were listed, each mention.
    :param total: of ``expected.amount``, ``None`` if nothing is added up.
    """

    expected: Expected | None = None
    count: int = 0
    total: Decimal | None = None

    def __post_init__(self) -> None:
        if self.expected is not None and self.expected.amount is not None:
            self.total = Decimal(0)

    def add(self, documents: list[Document]) -> None:
        """Count documents that were listed.

        :raises UnexpectedListing: one has no exact amount, so that the total cannot be told.
        """
        self.count += len(documents)
        if self.total is not None:
            for document in documents:
                self._add_amount(document.name, document.payload)

    def add_refused(self, item: Any) -> None:
        """Count what was listed and cannot be a key."""
        self.count += 1
        if self.total is not None:
            self._add_amount(f"{item!r:.80}", item)

    def _add_amount(self, name: str | None, payload: Any) -> None:
        field_ = (self.expected and self.expected.amount) or ""
        if not isinstance(payload, Mapping) or payload.get(field_) is None:
            raise UnexpectedListing(
                f"Document {name!r} has no {field_!r}, which Expected(amount=…) adds up. Nothing was executed."
            )
        try:
            amount = amount_of(payload[field_], field_)
        except AmountError as error:
            raise UnexpectedListing(
                f"Document {name!r}: {field_!r} is {payload[field_]!r:.80}, which is not an exact amount (a Decimal, an int, "
                "or text with a plain decimal number). Nothing was executed."
            ) from error
        self.total = (self.total or Decimal(0)) + amount

    def difference(self) -> str | None:
        """Return in words how the listing differs from what was expected, ``None`` if it does not."""
        wanted, found = self.expected, []
        if wanted is None:
            return None
        too_few = wanted.least is not None and self.count < wanted.least
        too_many = wanted.most is not None and self.count > wanted.most
        if too_few or too_many:
            found.append(
                f"{_counted(wanted.least, wanted.most)} expected, {self.count:,} listed: "
                f"{'too few' if too_few else 'too many'}"
            )
        if isinstance(wanted.total, (int, Decimal)) and self.total is not None and self.total != wanted.total:
            found.append(
                f"{wanted.amount} of {shown(Decimal(wanted.total))} expected in all, {shown(self.total)} listed"
            )
        return "; ".join(found) or None
