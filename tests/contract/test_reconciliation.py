"""Reconciling on each database and on each pairing: types, NULLs, currencies, names, caps."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from airflow_guard.core.errors import AmountError, ConfigurationError, SideInvalid
from airflow_guard.reconciling.drilldown import DrillDown, find_duplicates
from airflow_guard.reconciling.reconciler import reconcile
from airflow_guard.reconciling.rules import BreakType, Rules
from airflow_guard.reconciling.sides import Side
from tests.databases import DatabaseNotReachable, not_run
from tests.reconciling import KINDS, PAIRS, Places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import DatabaseServers

BOOKS = {"document_no": "text", "amount": "numeric", "currency": "text"}
EXACT_ONES = [
    "0",
    "-0.00",
    "0.10",
    "-0.19",
    "1.1000",
    "99999999999999999999999999999999999999",
    "-0.00000000000000000001",
]
SHORTER = ["-0", "0", "0.1", "-0.19", "1.1", *EXACT_ONES[5:]]
EXACT_TOTAL = Decimal("100000000000000000000000000000000000000.00999999999999999999")


@pytest.fixture(scope="module")
def all_places(database_servers: DatabaseServers) -> Iterator[Places]:
    made = Places(database_servers)
    yield made
    made.close()


@pytest.fixture
def places(all_places: Places) -> Iterator[Places]:
    """Places without tables ``s`` and ``t``."""
    yield all_places
    for place in all_places._places.values():
        for table in place.made:
            place.execute(f"DROP TABLE IF EXISTS {table}")
        place.made.clear()


def fill(places, pair, source, target, columns=None, constraint=""):
    """Make ``s`` and ``t`` with these rows."""
    columns = columns or BOOKS
    for kind, table, rows in zip(pair, "st", (source, target), strict=True):
        try:
            place = places[kind]
        except DatabaseNotReachable as error:
            not_run(str(error))
        place.table(table, columns, constraint)
        place.fill(table, list(columns), [[plain(kind, each) for each in row] for row in rows])


def plain(kind, value):
    """Return a value as the driver takes it; SQLite has neither decimals nor dates."""
    if kind == "sqlite" and isinstance(value, Decimal):
        return f"{value:f}"
    if kind == "sqlite" and isinstance(value, (date, datetime)):
        return str(value)
    if kind == "mariadb" and isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def found(comparison):
    return {(str(each.type), each.document) for each in comparison.breaks}


def books(*rows):
    return [
        (document, None if amount is None else Decimal(amount), currency)
        for document, amount, currency in rows
    ]


pairs = pytest.mark.parametrize("pair", PAIRS, ids="-".join)
some_pairs = pytest.mark.parametrize("pair", [PAIRS[n] for n in (0, 1, 5, 6, 8)], ids="-".join)
kinds = pytest.mark.parametrize("kind", KINDS)
KEYED = {"key": "document_no"}


# -- amounts -----------------------------------------------------------------------------------------------


@some_pairs
@pytest.mark.parametrize("key", [{}, KEYED], ids=["totals", "keys"])
def test_unequal_scales_and_very_long_amounts_are_exact(places, pair, key):
    """C29: 1.10 is 1.1 and minus zero is zero; nothing is rounded, in 38 digits and more."""
    rows = books(*((f"d{n}", amount, "EUR") for n, amount in enumerate(EXACT_ONES)))
    shorter = [(no, Decimal(short), currency) for (no, _, currency), short in zip(rows, SHORTER, strict=True)]
    fill(places, pair, rows, shorter)
    comparison = places.reconcile(*pair, **key)
    assert comparison.passed, comparison.why
    assert comparison.groups[0].source.amounts == (EXACT_TOTAL,)
    smallest = [*rows[:-1], ("d6", Decimal("-0.00000000000000000002"), "EUR")]
    fill(places, pair, rows, smallest)
    comparison = places.reconcile(*pair, **key)
    assert not comparison.passed
    assert "variance -0.00000000000000000001" in comparison.why


@some_pairs
def test_a_hundredth_is_named_with_its_sign(places, pair):
    fill(places, pair, books(("a", "-0.19", "EUR")), books(("a", "-0.18", "EUR")))
    [each] = places.reconcile(*pair, **KEYED).breaks
    assert (each.type, each.key, each.variance) == (BreakType.AMOUNT_MISMATCH, ("a",), Decimal("0.01"))


@some_pairs
def test_errors_that_cancel_each_other_out_are_found(places, pair):
    source = books(*((f"d{n}", f"{n}.00", "EUR") for n in range(100)))
    target = list(source)
    target[10], target[20] = ("d10", Decimal(11), "EUR"), ("d20", Decimal(19), "EUR")
    target[30], target[31] = ("d30", Decimal(31), "EUR"), ("d31", Decimal(30), "EUR")
    fill(places, pair, source, target)
    assert places.reconcile(*pair).passed  # which is what totals cannot see, and say
    comparison = places.reconcile(*pair, **KEYED)
    assert found(comparison) == {("amount_mismatch", f"d{n}") for n in (10, 20, 30, 31)}
    assert [each.reasons for each in comparison.groups] == [()]


@kinds
def test_floats_are_refused_unless_a_tolerance_is_set(places, kind):
    """C29: 0.1 added ten times is not 1.0; whether that matters is for the tolerance to say."""
    pair = (kind, kind)
    columns = {"document_no": "text", "amount": "float"}
    fill(places, pair, [("a", sum([0.1] * 10))], [("a", 1.0)], columns)
    with pytest.raises(AmountError, match=r"'amount'.*float"):
        places.reconcile(*pair, **KEYED)
    with pytest.raises(AmountError, match=r"'amount'.*float"):
        places.reconcile(*pair)
    comparison = places.reconcile(*pair, Rules(absolute_tolerance="0.000001"), **KEYED)
    assert comparison.passed
    assert "-0.0000000000000001" in comparison.why or "+0.0000000000000001" in comparison.why
    fill(places, pair, [("a", 1.5)], [("a", 1.0)], columns)
    assert found(places.reconcile(*pair, Rules(absolute_tolerance="0.1"), **KEYED)) == {
        ("amount_mismatch", "a")
    }


@some_pairs
def test_amounts_written_as_text_are_numbers_or_are_refused(places, pair):
    """R09: '0' and '0.00' are zero; '', 'abc' and '1,234.50' are no amounts."""
    columns = {"document_no": "text", "amount": "text"}
    fill(places, pair, [("a", "0"), ("b", "1.50")], [("a", "0.00"), ("b", "+1.5")], columns)
    assert places.reconcile(*pair, **KEYED).passed
    for wrong in ("", "abc", "1,234.50", "1e3", "NaN"):
        fill(places, pair, [("a", "0")], [("a", wrong)], columns)
        with pytest.raises(AmountError, match=rf"bank: t.*'amount'.*{wrong!r}|'amount'.*{wrong!r}"):
            places.reconcile(*pair, **KEYED)


@some_pairs
def test_integers_and_decimals_are_one_kind_of_amount(places, pair):
    source, target = (
        {"document_no": "small", "amount": "integer"},
        {"document_no": "integer", "amount": "money"},
    )
    fill(places, pair, [(1, 5), (2, -7)], [], source)
    for kind, table in zip(pair, "st", strict=True):
        places[kind].execute(f"DROP TABLE IF EXISTS {'t' if table == 't' else 'none'}")
        places[kind].made.discard("t")
    places[pair[1]].table("t", target)
    places[pair[1]].fill(
        "t", list(target), [[1, plain(pair[1], Decimal("5.0000"))], [2, plain(pair[1], Decimal(-7))]]
    )
    assert places.reconcile(*pair, **KEYED).passed


# -- NULL, zero, nothing -----------------------------------------------------------------------------------


@some_pairs
@pytest.mark.parametrize("key", [{}, KEYED], ids=["totals", "keys"])
def test_nothing_null_and_zero_are_three_things(places, pair, key):
    """C17."""

    def outcome(source, target, **rules):
        fill(places, pair, books(*source), books(*target))
        return places.reconcile(*pair, Rules(**rules), **key)

    none, zero, ten = (None, "0", "10.00")
    three_null = [(str(n), none, "EUR") for n in range(3)]
    assert not outcome([], []).passed
    assert "empty" in outcome([], []).why
    assert outcome([], [], allow_empty=True).passed
    assert not outcome([("a", none, "EUR")], [("a", zero, "EUR")], allow_empty=True).passed
    assert "3 rows without amount" in outcome(three_null, three_null).why
    assert not outcome(three_null, three_null).passed
    assert outcome(three_null, three_null, allow_missing_amounts=True).passed
    assert not outcome([("a", ten, "EUR")], [("a", none, "EUR")], allow_missing_amounts=True).passed
    partly = [("a", ten, "EUR"), ("b", none, "EUR")]
    other = [("a", ten, "EUR"), ("b", zero, "EUR")]
    assert not outcome(partly, other, allow_missing_amounts=True).passed
    assert not outcome([("a", ten, "EUR")], [], allow_empty=True).passed
    assert outcome([("a", zero, "EUR")], [("a", "-0.0", "EUR")]).passed


@kinds
def test_rows_without_key_are_a_break_even_if_both_sides_have_them(places, kind):
    columns = {"branch": "integer", "document_no": "text", "amount": "money"}
    rows = [(1, "a", Decimal(5)), (1, None, Decimal(7)), (None, "b", Decimal(8))]
    fill(places, (kind, kind), rows, rows, columns)
    comparison = places.reconcile(kind, kind, key=["branch", "document_no"])
    assert [
        (each.type, each.source_records, each.source_amount)
        for each in comparison.breaks
        if each.source_records
    ] == [(BreakType.NULL_KEY, 2, Decimal(15))]
    assert len(comparison.breaks) == 2
    assert not comparison.passed


# -- groups and currencies ---------------------------------------------------------------------------------


@some_pairs
def test_currencies_are_never_added_up(places, pair):
    """C31: the grand totals agree, and both currencies are wrong."""
    source = books(("a", "900", "USD"), ("b", "9000", "RUB"))
    target = books(("a", "9000", "USD"), ("b", "900", "RUB"))
    fill(places, pair, source, target)
    with pytest.raises(ConfigurationError, match=r"'RUB', 'USD'.*group_by"):
        places.reconcile(*pair)
    comparison = places.reconcile(*pair, Rules(group_by=["currency"]))
    assert [(each.group, each.passed) for each in comparison.groups] == [(("RUB",), False), (("USD",), False)]
    fill(places, pair, books(("a", "1", "EUR")), books(("a", "1", "USD")))
    with pytest.raises(ConfigurationError, match="currency"):
        places.reconcile(*pair, **KEYED)


@some_pairs
def test_a_currency_is_what_its_bytes_are(places, pair):
    """C31: 'usd' and 'USD ' are groups of their own, and so is none."""
    fill(
        places, pair, books(("a", "1", "USD"), ("b", "1", None)), books(("a", "1", "USD "), ("b", "1", "usd"))
    )
    comparison = places.reconcile(*pair, Rules(group_by=["currency"]))
    assert {each.group for each in comparison.groups} == {("USD",), (None,), ("USD ",), ("usd",)}
    assert not any(each.passed for each in comparison.groups)
    assert "no currency" in comparison.why
    # The same document in another group is one break, not two.
    moved = places.reconcile(*pair, Rules(group_by=["currency"]), **KEYED)
    assert found(moved) == {("attribute_mismatch", "a"), ("attribute_mismatch", "b")}


@kinds
def test_documents_that_swapped_their_groups_are_found(places, kind):
    """Totals, amounts and keys are the same; only who is where is not."""
    source = books(("a", "10", "EUR"), ("b", "10", "USD"))
    fill(places, (kind, kind), source, books(("a", "10", "USD"), ("b", "10", "EUR")))
    comparison = places.reconcile(kind, kind, Rules(group_by=["currency"]), **KEYED)
    assert found(comparison) == {("attribute_mismatch", "a"), ("attribute_mismatch", "b")}


# -- keys and compared columns -----------------------------------------------------------------------------


@pairs
def test_text_keys_are_compared_by_their_bytes(places, pair):
    names = [
        "INV-1",
        "INV-1 ",
        " INV-1",
        "inv-1",
        "ÍNV-1",
        "I\u0301NV-1",
        "INV\u20111",
        "INV-1\u200b",
        "",
        "ß",
        "ss",
    ]
    rows = books(*((name, "1", "EUR") for name in names))
    fill(places, pair, rows, rows)
    assert places.reconcile(*pair, **KEYED).passed
    fill(places, pair, rows[:1], rows[1:])
    comparison = places.reconcile(*pair, **KEYED)
    assert found(comparison) == {
        ("missing_in_target", names[0]),
        *(("missing_in_source", name) for name in names[1:]),
    }


@some_pairs
def test_hostile_documents_are_data(places, pair):
    """C33."""
    names = ["x'); DELETE FROM s;--", 'a"b', "100%", "%s", ":document_no", "\\", "{{ ds }}"]
    fill(places, pair, books(*((name, "1", "EUR") for name in names)), [])
    comparison = places.reconcile(*pair, **KEYED)
    assert {each.document for each in comparison.breaks} == set(names)


MOMENT = datetime(2026, 3, 29, 1, 30, 0, 250000)  # noqa: DTZ001 - a column without a time zone
VALUES = {
    "date": (date(2026, 3, 29), date(2026, 3, 30)),
    "datetime": (MOMENT, MOMENT.replace(microsecond=250001)),
    "instant": (MOMENT.replace(tzinfo=UTC), MOMENT.replace(tzinfo=UTC, microsecond=0)),
    "boolean": (True, False),
    "small": (7, -7),
    "text": ("", " "),
    "money": (Decimal("1.5000"), Decimal("1.5001")),
    "uuid": ("6f1e2d3c-0000-4000-8000-000000000001", "6f1e2d3c-0000-4000-8000-000000000002"),
}


@some_pairs
@pytest.mark.parametrize("family", VALUES)
def test_compared_columns_of_every_type(places, pair, family, monkeypatch):
    """Equal ones have equal checksums, so that nothing is read a second time; others are named."""
    columns = {"document_no": "integer", "amount": "money", "more": family}
    one, other = VALUES[family]
    rows = [(1, Decimal(1), one), (2, Decimal(1), None), (3, Decimal(1), other)]
    fill(places, pair, rows, rows, columns)
    differing = []
    monkeypatch.setattr(DrillDown, "differing", counting(DrillDown.differing, differing))
    assert places.reconcile(*pair, Rules(compare=["more"]), **KEYED).passed
    assert differing == [0]
    fill(places, pair, rows, [(1, Decimal(1), other), (2, Decimal(1), one), rows[2]], columns)
    comparison = places.reconcile(*pair, Rules(compare=["more"]), **KEYED)
    assert {(each.type, each.document, each.field) for each in comparison.breaks} == {
        (BreakType.ATTRIBUTE_MISMATCH, "1", "more"), (BreakType.ATTRIBUTE_MISMATCH, "2", "more")
    }  # fmt: skip


@some_pairs
@pytest.mark.parametrize("family", ["date", "datetime", "instant", "uuid", "money", "boolean"])
def test_keys_of_every_type(places, pair, family, monkeypatch):
    columns = {"document_no": family, "amount": "money"}
    one, other = VALUES[family]
    fill(places, pair, [(one, Decimal(1))], [(one, Decimal(1))], columns)
    differing = []
    monkeypatch.setattr(DrillDown, "differing", counting(DrillDown.differing, differing))
    assert places.reconcile(*pair, **KEYED).passed
    assert differing == [0]
    fill(places, pair, [(one, Decimal(1))], [(other, Decimal(1))], columns)
    assert {each.type for each in places.reconcile(*pair, **KEYED).breaks} == {
        BreakType.MISSING_IN_TARGET, BreakType.MISSING_IN_SOURCE
    }  # fmt: skip


@pairs
@pytest.mark.parametrize("family", ["integer", "text", "binary", *VALUES])
@pytest.mark.parametrize("late", ["source", "target", "both"])
def test_d14_rows_that_are_not_there_yet_are_a_difference(places, pair, family, late):
    """The type of a column is what the database says of it, and not what its first row holds."""
    columns = {"document_no": family, "amount": "money", "posted_on": "date"}
    key = {"integer": 7, "text": "INV-7", "binary": b"0123456789abcdef"}.get(family) or VALUES[family][0]
    day, other_day = date(2026, 1, 30), date(2026, 1, 29)
    days = {"source": (other_day, day), "target": (day, other_day), "both": (other_day, other_day)}[late]
    fill(places, pair, [(key, Decimal(1), days[0])], [(key, Decimal(1), days[1])], columns)

    def sides():
        text = "SELECT document_no, amount FROM {} WHERE posted_on = :business_date"
        written = {"key": "document_no", "amount": "amount"}
        return {
            "source_side": Side("books", sql=text.format("s"), **written),
            "target_side": Side("bank", sql=text.format("t"), **written),
            "parameters": {"business_date": str(day)},
        }

    comparison = places.reconcile(*pair, **sides())
    assert not comparison.passed
    missing = {"source": BreakType.MISSING_IN_SOURCE, "target": BreakType.MISSING_IN_TARGET}
    assert {each.type for each in comparison.breaks} == ({missing[late]} if late in missing else set())
    fill(places, pair, [(key, Decimal(1), day)], [(key, Decimal(1), day)], columns)
    assert places.reconcile(*pair, **sides()).passed, "they came"


def counting(function, numbers):
    def counted(self):
        buckets = function(self)
        numbers.append(len(buckets))
        return buckets

    return counted


@pairs
@pytest.mark.parametrize(
    "types", [("integer", "small"), ("text", "numeric"), ("uuid", "money"), ("money", "short")]
)
def test_equal_tables_are_read_once(places, pair, types, monkeypatch):
    """The databases compute the same checksums, whatever the types of key and amount."""
    key, amount = types
    columns = {"document_no": key, "amount": amount, "currency": "text"}
    keys = {
        "integer": [0, 1, -1, 511, 512, -513, 2**31 - 1, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63)],
        "text": ["", "a", "ä", "🧾", "a" * 200],
        "uuid": [f"00000000-0000-4000-8000-{n:012x}" for n in range(9)],
        "money": [Decimal(0), Decimal("-1.5"), Decimal("1234567.8900")],
    }[key]
    amounts = [None, Decimal(0), Decimal(1), Decimal(-1), Decimal(999_999), Decimal(-99)]
    if amount != "small":
        amounts += [Decimal("0.01"), Decimal("-0.5")]
    rows = [(each, amounts[n % len(amounts)], ("EUR", None)[n % 2]) for n, each in enumerate(keys)]
    fill(places, pair, rows, rows, columns)
    differing = []
    monkeypatch.setattr(DrillDown, "differing", counting(DrillDown.differing, differing))
    rules = Rules(group_by=["currency"], allow_missing_amounts=True)
    assert places.reconcile(*pair, rules, **KEYED).passed
    assert differing == [0]


@pytest.mark.parametrize(
    ("source", "target"),
    [("integer", "text"), ("datetime", "instant"), ("date", "datetime"), ("money", "text")],
)
def test_types_that_need_a_guess_are_refused(places, source, target):
    pair = ("postgres_embedded", "mariadb")
    fill(places, pair, [], [], {"document_no": source, "amount": "money"})
    places["mariadb"].execute("DROP TABLE t")
    places["mariadb"].made.discard("t")
    places["mariadb"].table("t", {"document_no": target, "amount": "money"})
    with pytest.raises(ConfigurationError, match=r"'document_no'.*cast"):
        places.reconcile(*pair, **KEYED)


@kinds
def test_a_value_of_sqlite_that_is_not_of_the_other_sides_type_is_named(places, kind):
    if kind == "sqlite":
        pytest.skip("SQLite beside SQLite has no type to be held against")
    fill(
        places,
        (kind, "sqlite"),
        [(1, Decimal(1))],
        [("x1", Decimal(1))],
        {"document_no": "integer", "amount": "money"},
    )
    with pytest.raises(SideInvalid, match=r"'document_no'.*'x1'"):
        places.reconcile(kind, "sqlite", **KEYED)


# -- multiplicities ----------------------------------------------------------------------------------------


@some_pairs
def test_equal_duplicates_on_both_sides_are_found(places, pair):
    rows = books(("a", "5", "EUR"), ("b", "5", "EUR"), ("b", "5", "EUR"))
    fill(places, pair, rows, rows)
    comparison = places.reconcile(*pair, **KEYED)
    assert [(str(each.type), each.document, each.source_records, each.target_records, each.target_amount)
            for each in comparison.breaks] == [
        ("duplicate_in_source", "b", 2, 2, Decimal(10)), ("duplicate_in_target", "b", 2, 2, Decimal(10)),
    ]  # fmt: skip
    assert not comparison.passed


@kinds
def test_duplicates_are_not_looked_for_where_a_constraint_forbids_them(places, kind):
    columns, rows = {"document_no": "integer", "amount": "money"}, [(n, Decimal(n)) for n in range(5)]
    fill(places, (kind, kind), rows, rows, columns, "PRIMARY KEY (document_no)")
    statements = []
    sa.event.listen(
        places[kind].engine,
        "before_cursor_execute",
        lambda c, cursor, statement, *rest: statements.append(statement),
    )
    assert places.reconcile(kind, kind, **KEYED).passed
    assert not [each for each in statements if "HAVING" in each]


def test_a_constraint_of_a_parent_table_says_nothing_about_its_children(places):
    pair = ("postgres_embedded", "postgres_embedded")
    columns, rows = {"document_no": "integer", "amount": "money"}, [(1, Decimal(1))]
    fill(places, pair, rows, rows, columns, "PRIMARY KEY (document_no)")
    place = places["postgres_embedded"]
    for table in "st":
        place.execute(f"CREATE TABLE {table}_child () INHERITS ({table})")
        place.execute(f"INSERT INTO {table}_child VALUES (1, 1)")
    try:
        assert len(places.reconcile(*pair, **KEYED).breaks) == 2
    finally:
        for table in "st":
            place.execute(f"DROP TABLE {table}_child")


@kinds
def test_a_key_with_very_many_rows_is_counted(places, kind):
    many = books(*(("a", str(n), "EUR") for n in range(2_500)))
    fill(places, (kind, kind), many, [*many[:1], *books(("b", "1", "EUR"))])
    comparison = places.reconcile(kind, kind, **KEYED)
    duplicate = next(each for each in comparison.breaks if each.type is BreakType.DUPLICATE_IN_SOURCE)
    assert (duplicate.source_records, duplicate.target_records) == (2_500, 1)
    assert (duplicate.source_amount, duplicate.target_amount) == (Decimal(2_500 * 2_499 // 2), Decimal(0))


@kinds
def test_the_one_sided_check_names_duplicates_and_rows_without_key(places, kind):
    rows = books(
        ("a", "5", "EUR"), ("a", "6", "EUR"), ("a", "7", "USD"), ("b", "1", "EUR"), (None, "3", "EUR")
    )
    fill(places, (kind, kind), rows, [])
    side = Side(conn_id="books", table="s", key="document_no")
    check = find_duplicates(side, Rules(group_by=["currency"]), engine=places[kind].engine)
    assert [(str(each.type), each.document, each.group, each.source_records, each.source_amount) for each in check.breaks] == [
        ("null_key", "", ("EUR",), 1, Decimal(3)), ("duplicate_in_source", "a", ("EUR",), 2, Decimal(11)),
    ]  # fmt: skip
    assert (check.passed, check.capped, check.reading.records) == (False, False, 5)
    without_amount = Side(conn_id="books", table="s", key="document_no", amount=None, currency=None)
    assert find_duplicates(without_amount, Rules(max_breaks=1), engine=places[kind].engine).capped


# -- caps --------------------------------------------------------------------------------------------------


@some_pairs
def test_breaks_are_capped_and_the_cap_is_said(places, pair):
    columns = {"document_no": "integer", "amount": "money"}
    rows = [(n * 600, Decimal(n)) for n in range(1_500)]
    fill(places, pair, rows, [(n, amount + 1) for n, amount in rows], columns)
    comparison = places.reconcile(*pair, Rules(max_breaks=1_000), **KEYED)
    assert (len(comparison.breaks), comparison.capped, comparison.passed) == (1_000, True, False)
    assert "more" in comparison.why
    comparison = places.reconcile(*pair, Rules(max_breaks=1_500), **KEYED)
    assert (len(comparison.breaks), comparison.capped) == (1_500, False)
    # Within a tolerance they are no breaks, however many.
    comparison = places.reconcile(*pair, Rules(max_breaks=10, absolute_tolerance="1500"), **KEYED)
    assert (comparison.breaks, comparison.capped, comparison.passed) == ((), False, True)


# -- sides as they are written -----------------------------------------------------------------------------


@some_pairs
def test_queries_conditions_parameters_and_other_names(places, pair):
    columns = {"no": "integer", "amt": "money", "vat": "money", "booked": "date", "ccy": "text"}
    today, other = date(2026, 1, 31), date(2026, 2, 1)
    rows = [(1, Decimal(10), Decimal(2), today, "EUR"), (2, Decimal(20), Decimal(4), today, "EUR")]
    fill(places, pair, [*rows, (3, Decimal(1), Decimal(0), other, "EUR")], rows, columns)
    source = Side(
        conn_id="books", table="s", key="no", amount=["net", "vat"], columns={"net": "amt", "currency": "ccy"},
        where="booked = :business_date -- only this day",
    )  # fmt: skip
    target = Side(
        conn_id="bank", sql="SELECT no AS document, amt, vat, ccy AS currency FROM t WHERE booked >= :since -- all;\n",
        key="document", amount=["amt", "vat"], parameters={"since": plain(pair[1], today)},
    )  # fmt: skip
    rules = Rules(group_by=["currency"])
    day = {"business_date": plain(pair[0], today)}
    comparison = places.reconcile(*pair, rules, source_side=source, target_side=target, parameters=day)
    assert comparison.passed, comparison.why
    assert (comparison.amount_names, comparison.groups[0].source.amounts) == (
        ("net", "vat"),
        (Decimal(30), Decimal(6)),
    )
    places[pair[1]].execute("UPDATE t SET vat = 5 WHERE no = 2")
    [each] = places.reconcile(*pair, rules, source_side=source, target_side=target, parameters=day).breaks
    assert (each.document, each.field, each.variance) == ("2", "vat", Decimal(1))


@kinds
def test_a_date_as_text_is_taken_as_what_it_is_compared_with(places, kind):
    columns = {"document_no": "integer", "amount": "money", "booked": "date"}
    fill(
        places,
        (kind, kind),
        [(1, Decimal(1), date(2026, 1, 31))],
        [(1, Decimal(1), date(2026, 1, 31))],
        columns,
    )
    parameters = {"business_date": "2026-01-31"}
    assert places.reconcile(
        kind, kind, where="booked = :business_date", parameters=parameters, **KEYED
    ).passed


@kinds
@pytest.mark.parametrize("more", [{"where": "amount > :none"}, {"parameters": {"unused": 1}}])
def test_parameters_too_many_or_too_few_are_refused(places, kind, more):
    fill(places, (kind, kind), [], [])
    if "parameters" in more:
        side = Side(conn_id="books", table="s", **more)
        with pytest.raises(ConfigurationError, match="unused"):
            places.reconcile(kind, kind, source_side=side)
        return
    with pytest.raises(ConfigurationError, match="none"):
        places.reconcile(kind, kind, **more)


@kinds
def test_records_without_amounts_can_be_compared(places, kind):
    rows = books(("a", "1", "EUR"), ("b", "2", "EUR"))
    fill(places, (kind, kind), rows, rows[:1])
    assert found(places.reconcile(kind, kind, amount=None, **KEYED)) == {("missing_in_target", "b")}
    assert not places.reconcile(kind, kind, amount=None).passed


HOSTILE = [
    "payments; DROP TABLE x--",
    "payments WHERE 1=1",
    'pay"ments',
    "a.b.c.d.e",
    "payments\n--",
    "",
    " ",
    "{{ ds }}",
]


@kinds
@pytest.mark.parametrize("where", ["table", "amount", "key", "column", "currency"])
def test_a_malformed_name_sends_no_statement(places, kind, where):
    """C33: also if it appears only when a template is rendered."""
    fill(places, (kind, kind), [], [])
    statements = []
    sa.event.listen(
        places[kind].engine,
        "before_cursor_execute",
        lambda c, cursor, statement, *rest: statements.append(statement),
    )
    template = "{{ dag_run.conf['x'] }}"
    given = {"columns": {"amount": template}} if where == "column" else {where: template}
    side = Side(conn_id="books", **{"table": "s", **given})
    for name in HOSTILE:
        with pytest.raises(ConfigurationError, match="name"):
            side.rendered(lambda text, name=name: name if text == template else text)
    with pytest.raises(ConfigurationError, match="name"):
        places.reconcile(kind, kind, source_side=side)
    assert statements == []


@kinds
def test_parts_of_a_name_are_quoted_by_the_dialect(places, kind):
    place = places[kind]
    quoted = place.engine.dialect.identifier_preparer.quote('Pay-"ments; DROP')
    place.execute(f"CREATE TABLE {quoted} (document_no varchar(10), amount integer)")
    try:
        place.execute(f"INSERT INTO {quoted} VALUES ('a', 1)")
        side = Side(conn_id="books", table=['Pay-"ments; DROP'], key="document_no")
        assert places.reconcile(kind, kind, source_side=side, target_side=side).passed
    finally:
        place.execute(f"DROP TABLE {quoted}")


# -- other databases ---------------------------------------------------------------------------------------


@pytest.fixture
def other(places):
    """A database that this package knows nothing about: it answers as SQLite does, and is called something else."""
    fill(
        places, ("sqlite", "sqlite"), [], [], {"document_no": "text", "amount": "integer", "currency": "text"}
    )
    engine = places["sqlite"].database.engine()
    engine.dialect.name = "otherdb"
    return engine


@kinds
@pytest.mark.parametrize("key", [{}, KEYED], ids=["totals", "keys"])
def test_any_other_database_can_be_a_side(places, other, kind, key):
    columns = {"document_no": "text", "amount": "integer", "currency": "text"}
    rows = [("a", 1, "EUR"), ("b", None, "EUR"), ("ä ", 3, None)]
    places["sqlite"].fill("s", list(columns), rows)
    places[kind].table("t", columns)
    places[kind].fill("t", list(columns), rows)
    statements = []
    sa.event.listen(other, "before_cursor_execute", lambda c, cursor, text, *rest: statements.append(text))

    def outcome(**rules):
        sides = [
            Side(conn_id=name, table=name, where="amount IS NULL OR amount > :low", **key) for name in "st"
        ]
        given = Rules(allow_missing_amounts=True, **rules)
        return reconcile(
            *sides, given, source_engine=other, target_engine=places[kind].engine, parameters={"low": 0}
        )

    assert outcome(group_by=["currency"]).passed
    with pytest.raises(ConfigurationError, match="currency"):
        outcome()
    places[kind].execute("UPDATE t SET amount = 4 WHERE amount = 1")
    comparison = outcome(group_by=["currency"])
    assert found(comparison) == ({("amount_mismatch", "a")} if key else set())
    assert not comparison.passed
    # Totals are computed there; rows are read only if documents are asked for.
    assert any("sum(" in each for each in statements) == (not key)


def test_an_error_in_any_other_database_is_typed_too(places, other):
    side = Side(conn_id="books", table="nowhere", key="document_no", currency=None)
    with pytest.raises(SideInvalid, match=r"books: nowhere: no such table"):
        reconcile(side, side, Rules(), source_engine=other, target_engine=other)
    check = find_duplicates(Side(conn_id="books", table="s", key="document_no"), Rules(), engine=other)
    assert check.passed


@pairs
def test_columns_that_cannot_be_null_have_the_same_checksums(places, pair, monkeypatch):
    columns = {"document_no": "integer", "amount": "money"}
    rows = [(n * 700 - 5_000, Decimal(n)) for n in range(20)]
    fill(places, pair, rows, rows, columns, "PRIMARY KEY (document_no)")
    for kind, table in zip(pair, "st", strict=True):
        if kind == "mariadb":
            places[kind].execute(f"ALTER TABLE {table} MODIFY amount decimal(16,6) NOT NULL")
    differing = []
    monkeypatch.setattr(DrillDown, "differing", counting(DrillDown.differing, differing))
    assert places.reconcile(*pair, **KEYED).passed
    assert differing == [0]
    places[pair[1]].execute("UPDATE t SET amount = 8 WHERE document_no = -5000")
    assert found(places.reconcile(*pair, **KEYED)) == {("amount_mismatch", "-5000")}


def test_a_view_with_an_outer_join_has_rows_without_amount(places):
    pair = ("mariadb", "mariadb")
    columns = {"document_no": "integer", "amount": "money"}
    fill(
        places,
        pair,
        [(1, Decimal(1)), (2, Decimal(1))],
        [(1, Decimal(1))],
        columns,
        "PRIMARY KEY (document_no)",
    )
    place = places["mariadb"]
    for table in "st":
        place.execute(f"ALTER TABLE {table} MODIFY amount decimal(16,6) NOT NULL")
    place.execute("CREATE VIEW v AS SELECT s.document_no, t.amount FROM s LEFT JOIN t USING (document_no)")
    try:
        view = Side(conn_id="books", table="v", key="document_no")
        comparison = places.reconcile(*pair, target_side=view, **KEYED)
        assert comparison.groups[0].target.amounts_missing == (1,)
        assert found(comparison) == {("amount_mismatch", "2")}
    finally:
        place.execute("DROP VIEW v")
