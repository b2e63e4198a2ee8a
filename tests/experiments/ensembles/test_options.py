from __future__ import annotations

from dataclasses import replace

import pytest

from secede.errors import ConfigError
from secede.experiments.config import parse
from secede.experiments.ensembles.options import AuditOptions, audit_digest

CONFIG = parse('methods = ["fine-tune"]', name="x")


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_rounds is 0, expected 1 or more"):
        AuditOptions(max_rounds=0)
    with pytest.raises(ConfigError, match="train_on is -1, expected 0 or more"):
        AuditOptions(train_on=-1)


def test_every_option_makes_another_audit() -> None:
    plain = AuditOptions()
    others = [
        replace(plain, seed=1),
        replace(plain, max_rounds=2),
        replace(plain, keep_unused_weights=True),
        replace(plain, quantised=False),
        replace(plain, train_on=1),
        replace(plain, relearn=True),
    ]
    digests = {audit_digest(CONFIG, {}, options) for options in (plain, *others)}
    assert len(digests) == 7
    assert audit_digest(CONFIG, {}, plain) == audit_digest(CONFIG, {}, AuditOptions())
    assert audit_digest(CONFIG, {"data": "other"}, plain) not in digests
