"""Random tables with injected breaks of every type, on every pairing: exactly the injected ones are reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_guard.reconciling.rules import Rules
from tests.databases import DatabaseNotReachable, not_run
from tests.reconciling import PAIRS, Places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import DatabaseServers

# document keys by family: columns, and a strategy for one key
INTEGERS = st.one_of(st.integers(-(2**62), 2**62), st.integers(-2000, 2000))
TEXTS = st.text(alphabet="aAäÄeé0 '%:-\\/\u200b🧾", min_size=0, max_size=6)
KEYS: dict[str, tuple[dict[str, str], st.SearchStrategy[tuple[Any, ...]]]] = {
    "integer": ({"k1": "integer"}, st.tuples(INTEGERS)),
    "text": ({"k1": "text"}, st.tuples(TEXTS)),
    "composite": ({"k1": "text", "k2": "integer"}, st.tuples(TEXTS, st.integers(-5, 5))),
    "uuid": ({"k1": "uuid"}, st.tuples(st.uuids().map(str))),
}
AMOUNT_TYPES = {"integer": "money", "text": "numeric", "composite": "money", "uuid": "short"}
AMOUNTS = st.one_of(
    st.none(),
    st.integers(-99_999_999, 99_999_999).map(lambda cents: Decimal(cents).scaleb(-2)),
    st.sampled_from([Decimal(each) for each in ("0", "0.00", "0.1", "0.10", "-0.01", "0.01", "1")]),
)
CURRENCIES = st.sampled_from(["EUR", "USD", "usd", None])
MEMOS = st.sampled_from(["x", "X", "", None, "ä"])
INJECTIONS = st.sampled_from(
    ["none", "none", "none", "missing_in_target", "missing_in_source", "duplicate_in_source", "duplicate_in_target",
     "twice", "two_three", "amount", "memo", "moved"]
)  # fmt: skip


@dataclass
class Case:
    """Two tables and the breaks between them."""

    source: list[tuple[Any, ...]] = field(default_factory=list)
    target: list[tuple[Any, ...]] = field(default_factory=list)
    expected: set[tuple[Any, ...]] = field(default_factory=set)

    def expect(self, kind, key, group, column=None, amounts=(None, None), records=(1, 1)):
        shown = tuple(None if amount is None else Decimal(amount) for amount in amounts)
        self.expected.add((kind, tuple(map(str, key)), group, column, shown, records))

    def document(self, key, row, injected, other):
        """Add a document to both tables, with a break."""
        amount, currency, memo = row
        group, one = (currency,), (*key, *row)
        twice, thrice = (None if amount is None else amount * n for n in (2, 3))
        if injected == "missing_in_target":
            self.source.append(one)
            self.expect(injected, key, group, amounts=(amount, None), records=(1, 0))
        elif injected == "missing_in_source":
            self.target.append(one)
            self.expect(injected, key, group, amounts=(None, amount), records=(0, 1))
        elif injected in ("duplicate_in_source", "duplicate_in_target", "twice", "two_three"):
            counts = {
                "duplicate_in_source": (2, 1),
                "duplicate_in_target": (1, 2),
                "twice": (2, 2),
                "two_three": (2, 3),
            }
            here, there = counts[injected]
            self.source += [one] * here
            self.target += [one] * there
            sums = tuple((amount, twice, thrice)[count - 1] for count in (here, there))
            for side, count in (("source", here), ("target", there)):
                if count > 1:
                    self.expect(f"duplicate_in_{side}", key, group, amounts=sums, records=(here, there))
        elif injected == "amount":
            self.source.append(one)
            self.target.append((*key, other, currency, memo))
            self.expect("amount_mismatch", key, group, "amount", (amount, other))
        elif injected in ("memo", "moved"):
            self.source.append(one)
            changed = (amount, currency, "changed") if injected == "memo" else (amount, "JPY", memo)
            self.target.append((*key, *changed))
            column = "memo" if injected == "memo" else "currency"
            self.expect("attribute_mismatch", key, group, column, (amount, amount))
        else:
            self.source.append(one)
            self.target.append(one)

    def offset(self, keys, rows, by):
        """Add two documents whose errors cancel each other out."""
        for key, row, change in zip(keys, rows, (by, -by), strict=True):
            amount = row[0] or Decimal(0)
            self.source.append((*key, amount, *row[1:]))
            self.target.append((*key, amount + change, *row[1:]))
            self.expect("amount_mismatch", key, (row[1],), "amount", (amount, amount + change))

    def null_keys(self, width, here, there):
        """Add rows without key."""
        for table, side, count in ((self.source, "source", here), (self.target, "target", there)):
            table.extend([(*([None] * width), Decimal("1.5"), "EUR", "x")] * count)
            if count:
                total, at = Decimal("1.5") * count, side == "target"
                self.expect(
                    "null_key", (), ("EUR",), amounts=(None, total) if at else (total, None),
                    records=(0, count) if at else (count, 0),
                )  # fmt: skip


@st.composite
def cases(draw, family):
    columns, keys = KEYS[family]
    documents = draw(st.lists(st.tuples(AMOUNTS, CURRENCIES, MEMOS, INJECTIONS, AMOUNTS), max_size=25))
    pairs = draw(st.integers(0, 2))
    named = draw(
        st.lists(keys, min_size=len(documents) + 2 * pairs, max_size=len(documents) + 2 * pairs, unique=True)
    )
    case = Case()
    for key, (amount, currency, memo, injected, other) in zip(named, documents, strict=False):
        case.document(
            key,
            (amount, currency, memo),
            "none" if injected == "amount" and other == amount else injected,
            other,
        )
    rest = named[len(documents) :]
    for number in range(pairs):
        rows = [draw(st.tuples(AMOUNTS, st.just("EUR"), MEMOS)) for _ in range(2)]
        by = draw(st.sampled_from([Decimal("0.01"), Decimal(1), Decimal("-250.50")]))
        case.offset(rest[2 * number : 2 * number + 2], rows, by)
    case.null_keys(len(columns), *draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 2)])))
    case.source, case.target = draw(st.permutations(case.source)), draw(st.permutations(case.target))
    return case


@pytest.fixture(scope="module")
def places(database_servers: DatabaseServers) -> Iterator[Places]:
    made = Places(database_servers)
    yield made
    made.close()


def stored(kind, row, pair):
    """Return a row as the database of a kind takes it.

    SQLite has no decimals. It has no UUIDs either: beside PostgreSQL's, a text in another form is the same one.
    """
    plain = [str(each) if isinstance(each, Decimal) and kind == "sqlite" else each for each in row]
    if kind == "sqlite" and "postgres_embedded" in pair and isinstance(row[0], str) and len(row[0]) == 36:
        plain[0] = row[0].upper().replace("-", "")
    return plain


@pytest.mark.parametrize("family", KEYS)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_exactly_the_injected_breaks_are_reported(places, pair, family):
    columns = {**KEYS[family][0], "amount": AMOUNT_TYPES[family], "currency": "text", "memo": "text"}
    names = [f"{family}_s", f"{family}_t"]
    try:
        for kind, name in zip(pair, names, strict=True):
            places[kind].table(name, columns)
    except DatabaseNotReachable as error:
        not_run(str(error))
    key = list(KEYS[family][0])
    rules = Rules(group_by=["currency"], compare=["memo"], allow_missing_amounts=True, allow_empty=True)

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases(family))
    def check(case):
        for kind, name, rows in zip(pair, names, (case.source, case.target), strict=True):
            places[kind].fill(name, list(columns), [stored(kind, row, pair) for row in rows])
        found = places.reconcile(
            *pair, rules,
            source_side=side(names[0], key), target_side=side(names[1], key),
        )  # fmt: skip
        reported = {
            (str(each.type), each.key, each.group, each.field, (each.source_amount, each.target_amount),
             (each.source_records, each.target_records))
            for each in found.breaks
        }  # fmt: skip
        assert reported == case.expected
        assert len(found.breaks) == len(case.expected)
        assert not found.capped
        # What the totals say must agree with it: nothing fails that has no break.
        assert found.passed == (not case.expected)

    check()


def side(table, key):
    from airflow_guard.reconciling.sides import Side

    return Side(conn_id="books", table=table, key=key)
