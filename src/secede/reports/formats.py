"""Numbers as text, the same on the page, in the terminal and on figures."""

from __future__ import annotations

import math
from typing import Literal

from secede.reports.analysis.statistics import Estimate

Unit = Literal["share", "points", "difference", "loss", "rounds", "MB", "count", "seconds", "times"]

MINUS = "\u2212"


def number(value: float, unit: Unit, *, digits: int | None = None) -> str:
    """Return a value as text, shares in percent, without its unit."""
    if not math.isfinite(value):
        return "not finite"
    if unit == "difference":  # of shares, in points with its sign
        text = _signed(value)
        return "0.0" if float(text.replace(MINUS, "-")) == 0 else text
    if unit in ("share", "points"):
        value *= 100
    text = f"{value:,.{_digits(value, unit) if digits is None else digits}f}"
    nothing = float(text.replace(",", "")) == 0
    return text.removeprefix("-") if nothing else text.replace("-", MINUS)


def mean(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return an estimate's mean with its unit."""
    return number(estimate.mean, unit, digits=digits) + _suffix(unit)


def interval(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return an estimate's interval without unit; empty if there is none or it has no width."""
    if estimate.interval is None:
        return ""
    low, high = (number(end, unit, digits=digits) for end in estimate.interval)
    return "" if estimate.low == estimate.high else f"{low} to {high}"


def full(estimate: Estimate, unit: Unit, *, digits: int | None = None) -> str:
    """Return mean and interval in one string."""
    inner = interval(estimate, unit, digits=digits)
    return mean(estimate, unit, digits=digits) + (f" ({inner})" if inner else "")


def brief(estimate: Estimate | None, unit: Unit) -> str:
    """Return a mean and half its interval's width, as a narrow terminal has room for."""
    if estimate is None:
        return ""
    if estimate.interval is None or unit != "share" or estimate.low == estimate.high:
        return mean(estimate, unit)
    low, high = estimate.interval
    half = number((high - low) / 2, unit)
    return f"{number(estimate.mean, unit)}\u00a0±\u00a0{half}{_suffix(unit)}"


def signed_points(estimate: Estimate) -> str:
    """Return a difference of shares in signed points, with its interval if it has a width."""
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
