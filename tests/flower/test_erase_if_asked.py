"""What a run's config asks for: an erasure, its plan, or nothing; and a leaver that is late."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from harness.flower.journals import home, told
from harness.flower.small import NOW, OPTIONS, STEP, Federation, load_model, strategy
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.request import new_request, sign_request
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.errors import ConfigError, RequestError
from secede.flower import Store, erase_if_asked

QUICK = {
    "methods": ["projected-ascent"],
    "settings": {"projected-ascent": STEP},
    "leaver_timeout": 0.3,
    "client_timeout": 0.3,
}


def asked(federation: Federation, **config: Any) -> bool:
    """Ask as an app does, with what stands in the run's config below `erasure`."""
    given = {f"erasure.{name.replace('_', '-')}": value for name, value in config.items()}
    context = Context(1, 0, {}, RecordDict(), given)
    return erase_if_asked(federation.grid(), strategy(), federation.store, context)


def test_without_a_leaver_nothing_is_erased(federation: Federation) -> None:
    federation.train(1)
    assert not asked(federation)
    assert not asked(federation, leaver="", trigger="other", options="{}")
    assert not (home(federation) / "federation.json").exists()


def test_the_plan_is_told_before_anybody_is_asked(federation: Federation) -> None:
    federation.train(2)
    assert asked(
        federation,
        leaver="name:site-1",
        trigger="contract-ended",
        options=json.dumps({"options": QUICK}),
    )
    lines = list(federation.told)
    (shown,) = [n for n, line in enumerate(lines) if "Plan: erase site-1 from north" in line]
    assert shown < min(n for n, line in enumerate(lines) if line.startswith("asking site-1"))
    for words in ("local-step", "projected-ascent", "weight-negation", "retrain", "1 to 5", "kB"):
        assert words in lines[shown]
    assert "Who takes part: site-0, site-2, site-3 (3)" in lines[shown]
    (path,) = (home(federation) / "receipts").glob("*.json")
    assert told(path)["request"]["trigger"] == "contract-ended"


def test_a_dry_run_says_the_plan_and_asks_nobody(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.train(2)
    for site in federation.sites:
        site.seen.clear()
    options = json.dumps(
        {"options": {"max_server_rounds": 7}, "leaver_gone": True, "dry_run": True}
    )
    assert asked(federation, leaver="name:site-1", options=options)
    (plan,) = [
        found for line in capsys.readouterr().out.splitlines() if (found := Plan.of_line(line))
    ]
    assert (plan.client, plan.ladder[0].max_rounds) == ("site-1", 7)
    assert [left.rung for left in plan.omitted] == ["local-step"]
    assert "leaver" in plan.omitted[0].reason
    assert all(site.seen == [] for site in federation.sites)
    assert not list(home(federation).glob("acknowledgements/*"))
    assert Plan.of_line("planned") is None


def test_why_somebody_leaves_is_not_assumed(federation: Federation) -> None:
    federation.train(2)
    with pytest.raises(ConfigError, match=r"`trigger` is required because.*contract-ended"):
        asked(federation, leaver="name:site-1", trigger="")
    with pytest.raises(ConfigError, match="no trigger 'boredom'"):
        asked(federation, leaver="name:site-1", trigger="boredom")
    assert not list(home(federation).glob("acknowledgements/*"))
    outcome = federation.erase("name:site-1", trigger="unlawful")
    assert federation.erase("name:site-1", trigger=None).receipt == outcome.receipt


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{", "erasure.options: "),
        ('{"colour": 1}', "erasure.options: colour"),
        ('{"leaver_gone": "yes"}', "erasure.options: leaver_gone"),
        ('{"options": {"colour": 1}}', "options: unknown 'colour'"),
        ('{"options": {"max_rounds": "many"}}', "options: .*rounds"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    federation: Federation, options: str, words: str
) -> None:
    federation.train(1)
    with pytest.raises(ConfigError, match=words):
        asked(federation, leaver="name:site-1", trigger="other", options=options)


def test_a_signed_request_is_read_from_its_file(federation: Federation) -> None:
    federation.train(2)
    generate_key_pair(federation.folder / "theirs", "site-1")
    public = home(federation) / "keys" / "site-1.pub"
    public.parent.mkdir(exist_ok=True)
    public.write_bytes((federation.folder / "theirs" / "site-1.pub").read_bytes())
    with pytest.raises(RequestError, match="signs its own requests"):
        asked(federation, leaver="name:site-1", trigger="other")
    serving = federation.store.serving_digest()
    made = new_request(
        federation="north", client="site-1", trigger="objection", model=str(serving), now=NOW
    )
    path = federation.folder / "request.json"
    key = load_private_key(federation.folder / "theirs" / "site-1.key")
    path.write_bytes(sign_request(made, key))
    options = json.dumps({"options": QUICK, "request": str(path)})
    assert asked(federation, leaver="name:site-1", options=options)


# A leaver that is late


def test_a_leaver_that_is_offline_for_a_moment_is_waited_for(federation: Federation) -> None:
    federation.train(2)
    leaver = federation.site("site-1")
    leaver.online = False

    def come_back() -> None:
        while not federation.told.has("waiting for site-1 until"):
            time.sleep(0.05)
        leaver.online = True

    threading.Thread(target=come_back, daemon=True).start()
    outcome = federation.erase("name:site-1", options=replace(OPTIONS, leaver_timeout=60.0))
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert federation.told.has("site-1 is not online: the erasure waits for it until its deadline")
    assert federation.told.has("waiting for site-1 until", "to come online")


def test_after_its_deadline_the_next_rung_is_taken_and_why_is_told(federation: Federation) -> None:
    federation.train(2)
    federation.site("site-1").online = False
    options = replace(OPTIONS, methods=(), settings={}, max_server_rounds=8)
    outcome = federation.erase("name:site-1", options=options)
    assert outcome.rung != "local-step"
    assert federation.told.has("escalated", "silent", "'site-1' was not online within 0.3 seconds")
    assert outcome.receipt is not None
    (tried, *_) = told(outcome.receipt)["method"]["tried_before"]
    assert (tried["rung"], tried["outcome"]) == ("local-step", "silent")


def test_one_that_is_gone_is_not_waited_for(federation: Federation) -> None:
    federation.train(2)
    federation.site("site-1").online = False
    options = replace(OPTIONS, methods=(), settings={}, max_server_rounds=8, leaver_timeout=600.0)
    outcome = federation.erase("name:site-1", options=options, leaver_gone=True)
    assert outcome.rung != "local-step"
    assert not federation.told.has("waiting for site-1")


def test_a_federation_is_called_after_its_own_folder(tmp_path: Path) -> None:
    assert Store(tmp_path / "north" / "home", load_model).name == "north"
    assert Store(tmp_path / "south", load_model).name == "south"
    assert Store(tmp_path / "a b" / "home", load_model).name == "federation"
    federation = Federation(tmp_path / "east")
    federation.train(2)
    federation.erase("name:site-1")
    federation.folder.rename(tmp_path / "west")
    assert Store(tmp_path / "west" / "home", load_model).name == "north"  # as it was founded
