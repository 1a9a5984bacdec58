"""Scalars of numpy and pandas as content: the libraries themselves where they are installed, else what they look like.

The package imports neither of them. A stand-in has the module, the class name and the methods of the scalar.
"""

# ruff: noqa: DTZ001 - naive datetimes are content as well

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_guard.core.content import NoForm, canonical, changed_fields, fingerprint
from airflow_guard.core.errors import DocumentError
from airflow_guard.core.keys import cycle_text, normalise_document


def scalar(name: str, item: object, dtype: str = "", *bases: type) -> Any:
    """Return a stand-in for a scalar of numpy. Its text says nothing."""
    generic = type("generic", (), {"__module__": "numpy", "item": lambda self: item})
    body = {"__module__": "numpy", "dtype": SimpleNamespace(name=dtype), "__str__": lambda self: "scalar"}
    return type(name, (*bases, generic), body)()


def pandas(name: str, base: type, *values: Any, **attributes: Any) -> Any:
    """Return a stand-in for a scalar of pandas, which is a subclass of a type of the standard library."""
    kind = type(name, (base,), {"__module__": "pandas._libs.tslibs", **attributes})
    return kind(*values)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (scalar("int64", 5), 5), (scalar("bool", True), True), (scalar("float32", 0.5), Decimal("0.5")),
        (scalar("datetime64", date(2025, 3, 31)), date(2025, 3, 31)),
        (scalar("datetime64", datetime(2025, 3, 31, 12)), datetime(2025, 3, 31, 12)),
        (scalar("datetime64", 1_743_422_400_000_000_000, "datetime64[ns]"), datetime(2025, 3, 31, 12)),
        (scalar("datetime64", None), None), (scalar("timedelta64", timedelta(1)), timedelta(1)),
        (scalar("timedelta64", 86_400_000_000_000, "timedelta64[ns]"), timedelta(1)),
        (pandas("Timestamp", datetime, 2025, 3, 31, 12, nanosecond=0), datetime(2025, 3, 31, 12)),
        (pandas("Timedelta", timedelta, 1, nanoseconds=0), timedelta(1)),
        (pandas("NaTType", datetime, 1, 1, 1), None), (pandas("NAType", object), None),
    ],
)  # fmt: skip
def test_a_scalar_of_a_library_is_the_plain_value(value: Any, plain: object) -> None:
    assert canonical(value) == canonical(plain)
    assert canonical([{"a": value}]) == canonical([{"a": plain}])


def test_nanoseconds_count() -> None:
    fine = pandas("Timestamp", datetime, 2025, 3, 31, 12, nanosecond=7)
    assert canonical(fine) != canonical(datetime(2025, 3, 31, 12))
    assert canonical(fine) == canonical(scalar("datetime64", 1_743_422_400_000_000_007, "datetime64[ns]"))
    assert canonical(pandas("Timedelta", timedelta, 0, nanoseconds=7)) == canonical(
        scalar("timedelta64", 7, "timedelta64[ns]")
    )


@pytest.mark.parametrize(
    "value",
    [
        scalar("longdouble", 1j), scalar("timedelta64", 3, "timedelta64[M]"), scalar("datetime64", 3, "datetime64[ps]"),
        type("ndarray", (), {"__module__": "numpy", "item": lambda self: 1})(),
        type("Series", (), {"__module__": "pandas", "item": lambda self: 1})(),
    ],
)  # fmt: skip
def test_d01_what_is_no_scalar_is_refused_although_it_has_an_item(value: Any) -> None:
    with pytest.raises(NoForm):
        canonical(value)
    with pytest.raises(DocumentError, match=r"'rates\[0\]'"):
        fingerprint({"rates": [value]})


def test_a_scalar_is_an_identity_and_a_cycle_by_its_value() -> None:
    assert normalise_document(scalar("int64", 5)) == "5"
    assert cycle_text(scalar("int64", 5)) == "5"
    with pytest.raises(DocumentError):
        normalise_document(scalar("float64", 5.0))


def test_d01_with_the_libraries_themselves() -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    moment = datetime(2025, 3, 31, 12)
    same = [
        (np.int64(5), 5), (np.uint8(5), 5), (np.float64(1.5), Decimal("1.50")), (np.float32(0.5), 0.5), (np.bool_(0), False),
        (np.str_("a"), "a"), (np.bytes_(b"a"), b"a"), (np.datetime64("2025-03-31"), date(2025, 3, 31)),
        (np.datetime64("2025-03-31T12:00"), moment), (np.datetime64(moment, "ns"), moment), (np.datetime64("NaT"), None),
        (np.timedelta64(1, "D"), timedelta(1)), (np.timedelta64(10**9, "ns"), timedelta(seconds=1)), (pd.NaT, None),
        (pd.NA, None), (pd.Timestamp(moment), moment), (pd.Timedelta(days=1), timedelta(1)),
        (pd.Timestamp("2025-03-31 14:00", tz="Europe/Berlin"), moment.replace(tzinfo=UTC)),
        (pd.Timestamp("2025-03-31 12:00:00.000000007"), np.datetime64("2025-03-31T12:00:00.000000007")),
    ]  # fmt: skip
    for value, plain in same:
        assert canonical(value) == canonical(plain), value
    rates = np.ones(2000)
    frame = pd.DataFrame({"amount": rates})
    for foreign in (rates, rates[:1], frame, frame["amount"], pd.Index([1]), pd.Period("2025-03"), pd.Interval(0, 1),
                    np.longdouble(1), np.complex128(1), np.ma.masked, np.timedelta64(1, "M")):  # fmt: skip
        with pytest.raises(DocumentError, match="'rates'"):
            fingerprint({"rates": foreign})
    # The way out that the message names, and it finds the correction in the middle.
    before, after = rates.tolist(), rates.tolist()
    after[1000] = 9999.0
    assert changed_fields(fingerprint({"rates": before}), fingerprint({"rates": after})) == ["rates"]
    assert changed_fields(fingerprint({"rates": before}), fingerprint({"rates": list(rates)})) is None


def test_a_table_of_pyarrow_is_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"amount": [1]})
    for foreign in (table, table["amount"], table["amount"][0]):
        with pytest.raises(DocumentError, match="pyarrow"):
            fingerprint({"rates": foreign})


def test_neither_library_is_imported() -> None:
    code = (
        "import sys; from airflow_guard.core import documents; "
        "print([name for name in ('numpy', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
