"""Numbers as text, formatted alike on the page, in the terminal and on figures."""

from __future__ import annotations

import math
from typing import Literal

from secede.reports.analysis.statistics import Estimate

Unit = Literal["share", "points", "difference", "loss", "rounds", "MB", "count", "seconds", "times"]

MINUS = "\u2212"


def format_number(value: float, unit: Unit, *, digits: int | None = None) -> str:
    """Return a value as text without its unit; shares are in percent."""
    if not math.isfinite(value):
        return "not finite"
    if unit == "difference":  # of shares, in points with its sign
        text = _signed(value)
        return "0.0" if float(text.replace(MINUS, "-")) == 0 else text
    if unit in ("share", "points"):
        value *= 100
    text = f"{value:,.{_digits(value, unit) if digits is None else digits}f}"
    is_zero = float(text.replace(",", "")) == 0
    return text.removeprefix("-") if is_zero else text.replace("-", MINUS)


def format_mean(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return an estimate's mean with its unit."""
    return format_number(estimate.mean, unit, digits=digits) + _suffix(unit)


def format_interval(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return an estimate's interval without unit; empty if there is none or it has no width."""
    if estimate.interval is None:
        return ""
    low, high = (format_number(end, unit, digits=digits) for end in estimate.interval)
    return "" if estimate.low == estimate.high else f"{low} to {high}"


def format_estimate(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return mean and interval in one string."""
    ends = format_interval(estimate, unit, digits=digits)
    return format_mean(estimate, unit, digits=digits) + (f" ({ends})" if ends else "")


def format_brief(estimate: Estimate | None, unit: Unit) -> str:
    """Return a mean ± half its interval, short enough for a terminal."""
    if estimate is None:
        return ""
    if estimate.interval is None or unit != "share" or estimate.low == estimate.high:
        return format_mean(estimate, unit)
    low, high = estimate.interval
    half = format_number((high - low) / 2, unit)
    return f"{format_number(estimate.mean, unit)}\u00a0±\u00a0{half}{_suffix(unit)}"


def format_points(estimate: Estimate) -> str:
    """Return a difference of shares in signed points and its interval, if that has a width."""
    text = f"{_signed(estimate.mean)} points"
    if estimate.interval is None or estimate.low == estimate.high:
        return text
    low, high = map(_signed, estimate.interval)
    return f"{text} ({low} to {high})"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", MINUS)


def _digits(value: float, unit: Unit) -> int:
    match unit:
        case "loss":
            return 3 if abs(value) < 10 else 1
        case "count":
            return 0
        case "rounds":
            return 0 if float(value).is_integer() else 1
        case "MB":
            return 1 if abs(value) < 1000 else 0
        case _:
            return 1


def _suffix(unit: Unit) -> str:
    suffixes: dict[Unit, str] = {
        "share": "\u00a0%",
        "points": "\u00a0points",
        "MB": "\u00a0MB",
        "seconds": "\u00a0s",
        "times": "×",
    }
    return suffixes.get(unit, "")
