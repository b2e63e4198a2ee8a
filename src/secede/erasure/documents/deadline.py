"""When an answer is due: one month after receipt, at most two more (GDPR Art. 12(3)).

Months are calendar months: from 31 January to 28 February. The law lets the last day run to its
end, and to the next working day; here it ends at the time of day of receipt, which is never later.
"""

from __future__ import annotations

import calendar
from datetime import UTC, datetime

MONTHS = 1
MOST_FURTHER_MONTHS = 2


def months_after(start: datetime, months: int) -> datetime:
    """Return the same day and time `months` later, or that month's last day if it is shorter."""
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return start.replace(year=year, month=month + 1, day=min(start.day, last))


def due(received: datetime, further_months: int = 0) -> datetime:
    """Return by when a request is to be answered; counted from receipt, not from another due."""
    return months_after(received, MONTHS + further_months)


def days_left(due: datetime, now: datetime) -> int:
    """Return the days until `due` by date: 0 on the last one, negative once it has passed."""
    left = (due.astimezone(UTC).date() - now.astimezone(UTC).date()).days
    return min(left, -1) if now > due else left
