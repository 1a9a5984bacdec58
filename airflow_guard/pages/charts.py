"""Charts as SVG, drawn on the server: no script, no style of their own."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from airflow_guard.pages.wording import amount

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from airflow_guard.reading.check_records import VariancePoint, VolumePoint

_WIDTH, _HEIGHT = 360, 130
_TOP, _BOTTOM, _SIDE = 18, 20, 2
_NARROWEST = 1.5


@dataclass(frozen=True)
class Bar:
    """One date of a chart.

    :param bad: whether it is drawn as something wrong.
    """

    at: date
    value: Decimal
    text: str
    bad: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart with its title.

    :param title: what it shows.
    """

    title: str
    svg: Markup


def volume(points: Sequence[VolumePoint]) -> Chart | None:
    """Return how many documents each date had, over all DAGs; ``None`` if there are no two dates."""
    totals: dict[date, int] = {}
    for point in points:
        totals[point.business_date] = totals.get(point.business_date, 0) + point.documents
    bars = [
        Bar(day, Decimal(documents), f"{day}: {documents:,} documents")
        for day, documents in sorted(totals.items())
    ]
    return _chart("Documents per business date", bars)


def variances(points: Sequence[VariancePoint], *, at_most: int) -> list[Chart]:
    """Return a chart for each group and amount that ever differed, the largest difference first.

    :param at_most: how many.
    """
    series: dict[tuple[str, ...], list[VariancePoint]] = {}
    for point in points:
        group = ", ".join(
            f"{name} {'none' if value is None else value}" for name, value in point.group.items()
        )
        place = (point.dag_id, point.operation, point.cycle, point.amount, group)
        series.setdefault(place, []).append(point)
    differing = {place: found for place, found in series.items() if any(point.variance for point in found)}
    extent = {place: max(abs(p.variance or Decimal(0)) for p in found) for place, found in differing.items()}
    largest = sorted(differing, key=lambda place: -extent[place])
    charts = (_variance(place, differing[place]) for place in largest[:at_most])
    return [chart for chart in charts if chart is not None]


def _variance(place: tuple[str, ...], points: Sequence[VariancePoint]) -> Chart | None:
    dag_id, operation, cycle, column, group = place
    name = " / ".join(part for part in (dag_id, operation, cycle) if part)
    title = f"Variance of {column}{f' ({group})' if group else ''}: {name}"
    bars = [
        Bar(
            point.business_date,
            point.variance or Decimal(0),
            f"{point.business_date}: {amount(point.variance, signed=True)}",
            bad=True,
        )
        for point in sorted(points, key=lambda each: each.business_date)
    ]
    return _chart(title, bars, alone=True)


def _chart(title: str, bars: Sequence[Bar], *, alone: bool = False) -> Chart | None:
    if len(bars) < (1 if alone else 2):
        return None
    top = max(Decimal(0), *(bar.value for bar in bars))
    bottom = min(Decimal(0), *(bar.value for bar in bars))
    span = top - bottom or Decimal(1)
    room = Decimal(_HEIGHT - _TOP - _BOTTOM)
    zero = Decimal(_TOP) + top / span * room
    step = (_WIDTH - 2 * _SIDE) / len(bars)
    width = min(max(_NARROWEST, step * 0.72), 36)
    parts = [_bar(bar, _SIDE + (index + 0.5) * step - width / 2, width, zero, room / span)
             for index, bar in enumerate(bars)]  # fmt: skip
    worst = max(bars, key=lambda bar: abs(bar.value))
    label = f"{title}, {bars[0].at} to {bars[-1].at}. Largest: {worst.text}."
    svg = Markup(
        '<svg viewBox="0 0 {w} {h}" role="img" aria-label="{label}"><g class="bars">{bars}</g>'
        '<line class="axis" x1="0" x2="{w}" y1="{z}" y2="{z}"></line>'
        '<text x="{side}" y="12">{top}</text>'
        '<text x="{side}" y="{foot}">{first}</text><text x="{right}" y="{foot}" text-anchor="end">{last}</text></svg>'
    ).format(
        w=_WIDTH, h=_HEIGHT, label=label, bars=Markup("").join(parts), z=_px(zero), side=_SIDE, foot=_HEIGHT - 5,
        right=_WIDTH - _SIDE, top=f"largest: {worst.text}", first=str(bars[0].at),
        last=str(bars[-1].at) if len(bars) > 1 else "",
    )  # fmt: skip
    return Chart(title, svg)


def _bar(bar: Bar, x: float, width: float, zero: Decimal, scale: Decimal) -> Markup:
    height = abs(bar.value) * scale
    y = zero - height if bar.value >= 0 else zero
    kind = Markup(' class="bad"') if bar.bad else Markup("")
    return Markup('<rect x="{}" y="{}" width="{}" height="{}"{}><title>{}</title></rect>').format(
        f"{x:.1f}", _px(y), f"{width:.1f}", _px(max(height, Decimal(1) if bar.value else Decimal(0))), kind,
        escape(bar.text),
    )  # fmt: skip


def _px(value: Decimal) -> str:
    return f"{value:.1f}"
