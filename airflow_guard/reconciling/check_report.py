"""What a comparison comes to: as it is stored, as it changed since it passed, and as people read it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_guard.core.amounts import shown, variance
from airflow_guard.core.checks import BOTH_EMPTY, TOTALS_MISMATCH, FoundBreak, digest, printable
from airflow_guard.reconciling.rules import BreakType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_guard.core.amounts import ControlTotals, Group
    from airflow_guard.reconciling.comparison import Comparison, GroupResult
    from airflow_guard.reconciling.rules import Break

NO_GROUP = "(all rows)"


def difference_of(comparison: Comparison) -> str | None:
    """Return a digest of why two sides do not pass, ``None`` if they do."""
    if comparison.passed:
        return None
    return comparison.difference or digest(*comparison.reasons)


def totals_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the control totals of every group as JSON values; amounts are text, so that they stay exact."""
    return [
        {
            "group": _named(comparison, result.group),
            "source": _side(comparison, result.source),
            "target": _side(comparison, result.target),
            "reasons": list(result.reasons),
        }
        for result in comparison.groups
    ]


def found_breaks(comparison: Comparison) -> list[FoundBreak]:
    """Return the breaks that fail a comparison, as they are stored.

    A group whose totals fail without a document to name is a break of its own, and so are two empty sides.
    """
    if not comparison.groups and not comparison.passed:
        return [FoundBreak(BOTH_EMPTY)]
    named = [each for each in comparison.breaks if not each.tolerated]
    found = [_found(comparison, each) for each in named]
    explained = {group for each in named for group in _groups(comparison, each)}
    bare = [each for each in comparison.groups if not each.passed and each.group not in explained]
    return found + [_found_group(comparison, each) for each in bare]


def changed_since(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """Return how stored totals differ from earlier ones: ``target +1 row, +10.00``; empty if they do not.

    :param before: totals as :func:`totals_of` gave them then.
    :param now: the same now.
    """
    then = {_key(each): each for each in before}
    current = {_key(each): each for each in now}
    phrases = []
    for key in [*then, *(key for key in current if key not in then)]:
        sides = [
            phrase
            for name in ("source", "target")
            if (phrase := _change(name, then.get(key, {}).get(name), current.get(key, {}).get(name)))
        ]
        if sides:
            group = (then.get(key) or current[key])["group"]
            where = f"{group_text(group)}: " if group else ""
            phrases.append(where + ", ".join(sides))
    return "; ".join(phrases)


def group_text(group: Mapping[str, str | None]) -> str:
    """Return a group as people read it. NULL is no value, and not an empty one.

    >>> group_text({"currency": None, "branch": "01"})
    'no currency, branch 01'
    """
    named = (
        f"no {column}" if value is None else f"{column} {printable(value)}" for column, value in group.items()
    )
    return ", ".join(named) or NO_GROUP


def _named(comparison: Comparison, group: Group) -> dict[str, str | None]:
    return dict(zip(comparison.rules.group_by, group, strict=False))


def _side(comparison: Comparison, totals: ControlTotals | None) -> dict[str, Any] | None:
    if totals is None:
        return None
    amounts = (None if each is None else shown(each) for each in totals.amounts)
    return {
        "records": totals.records,
        "amounts": dict(zip(comparison.amount_names, amounts, strict=False)),
        "missing": dict(zip(comparison.amount_names, totals.amounts_missing, strict=False)),
    }


def _found(comparison: Comparison, each: Break) -> FoundBreak:
    amounts = each.type is not BreakType.ATTRIBUTE_MISMATCH
    variance = each.variance if amounts else None
    source = _text(each.source_amount) if amounts else each.source_value
    target = _text(each.target_amount) if amounts else each.target_value
    return FoundBreak(
        break_type=each.type.value,
        group=_named(comparison, each.group),
        document=_document(each.key),
        field=each.field,
        source_value=source,
        target_value=target,
        variance=_text(variance),
        source_records=each.source_records,
        target_records=each.target_records,
    )


def _found_group(comparison: Comparison, result: GroupResult) -> FoundBreak:
    source, target = (_side(comparison, totals) for totals in (result.source, result.target))
    return FoundBreak(
        break_type=TOTALS_MISMATCH,
        group=_named(comparison, result.group),
        source_value=_in_words(source),
        target_value=_in_words(target),
    )


def _groups(comparison: Comparison, each: Break) -> Iterator[Group]:
    """Yield the groups whose totals a break explains: two if the sides put the document into different ones."""
    yield each.group
    columns = list(comparison.rules.group_by)
    if each.field is not None and each.field in columns:
        place = columns.index(each.field)
        yield (*each.group[:place], each.target_value, *each.group[place + 1 :])


def _document(key: tuple[str, ...]) -> str | None:
    if not key:
        return None
    return key[0] if len(key) == 1 else json.dumps(key, ensure_ascii=False)


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else shown(amount)


def _in_words(side: Mapping[str, Any] | None) -> str | None:
    if side is None:
        return None
    return ", ".join([_rows(side["records"]), *_amounts_in_words(side)])


def _amounts_in_words(side: Mapping[str, Any]) -> Iterator[str]:
    for name, amount in side["amounts"].items():
        missing = side["missing"][name]
        without = f" ({missing:,} without)" if missing else ""
        yield f"{name} {'none' if amount is None else amount}{without}"


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


def _key(group: Mapping[str, Any]) -> str:
    return json.dumps(group["group"], sort_keys=True)


def _change(name: str, then: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    before, after = then or {"records": 0, "amounts": {}}, now or {"records": 0, "amounts": {}}
    rows = after["records"] - before["records"]
    parts = [f"{rows:+,} {'row' if abs(rows) == 1 else 'rows'}"] if rows else []
    names = [*before["amounts"], *(each for each in after["amounts"] if each not in before["amounts"])]
    for amount in names:
        first, second = (Decimal(side["amounts"].get(amount) or 0) for side in (before, after))
        by = variance(first, second)
        if by:
            label = f"{amount} " if len(names) > 1 else ""
            parts.append(f"{label}{by:+f}")
    return f"{name} {', '.join(parts)}" if parts else ""
