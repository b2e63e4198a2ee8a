"""Who is erased: selectors, names, keys and nodes."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message

from harness.flower.inprocess import Site
from harness.flower.journals import details, home, told
from harness.flower.small import NOW, OPTIONS, Federation, client_app, strategy
from secede import state as states
from secede.erasure.documents.plan import Margins
from secede.erasure.documents.request import new_request, sign_request
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.errors import ConfigError, RequestError
from secede.flower import plan
from secede.flower.client.kept_updates import KeptUpdates

LOOSE = Margins(overall=0.99, per_class=0.99)  # what is tested is the guard

WRONG = [
    ("site-1", r"expected name:NAME, key:SHA-256 or node:ID; did you mean name:site-1\? the"),
    ("site-9", "expected name:NAME, key:SHA-256 or node:ID; the"),
    ("name:", "expected name:NAME"),
    ("name:site", "matches 0 clients"),
    ("name:SITE-1", "matches 0 clients"),
    ("name:site-1 ", "matches 0 clients"),
    ("name:site-*", "matches 0 clients"),
    ("node:1", "matches 0 clients"),
    ("key:ab", "matches 0 clients"),
    ("address:1", "expected name:NAME"),
    ("", "expected name:NAME"),
]


@pytest.mark.parametrize(("selector", "message"), WRONG)
def test_a_selector_matches_one_client_or_none_is_touched(
    federation: Federation, selector: str, message: str
) -> None:
    federation.train(1)
    for site in federation.sites:
        site.seen.clear()
    with pytest.raises(ConfigError, match=message) as caught:
        federation.erase(selector)
    for name in ("site-0", "site-1", "site-2", "site-3"):
        assert f"name:{name}" in str(caught.value)  # so that the right one can be chosen
    assert all(site.seen == [] for site in federation.sites)


def test_all_kinds_of_selectors_name_the_same_client(federation: Federation) -> None:
    federation.train(1)
    site = federation.site("site-2")
    key = hashlib.sha256(site.key).hexdigest()
    for selector in ("name:site-2", f"node:{site.node}", f"key:{key}"):
        found = plan(federation.grid(), strategy(), federation.store, leaver=selector)
        assert found.client == "site-2"
        assert found.ladder[0].rung == "local-step"


def test_two_nodes_of_one_name_are_refused(federation: Federation) -> None:
    federation.train(1)
    twin = Site(name="site-2", node=77, config={}, key=b"another key")
    federation.sites.append(twin)
    with pytest.raises(ConfigError, match="two clients are called 'site-2'"):
        federation.erase("name:site-2")


def test_a_node_with_another_key_is_not_the_client_of_that_name(federation: Federation) -> None:
    federation.train(2)
    federation.site("site-1").key = b"somebody else's key"
    how = replace(OPTIONS, methods=(), settings={}, max_server_rounds=8)
    outcome = federation.erase(f"key:{hashlib.sha256(b'public key 1').hexdigest()}", options=how)
    assert outcome.rung != "local-step"  # who is online is a stranger, and was not asked
    assert "train.unlearn" not in federation.site("site-1").seen


def test_who_never_contributed_is_not_erased(federation: Federation) -> None:
    federation.site("site-3").online = False
    federation.train(1)
    federation.site("site-3").online = True
    with pytest.raises(ConfigError, match="never contributed to the model"):
        federation.erase("name:site-3")


def test_nodes_without_names_or_keys_are_known_by_their_ids(tmp_path: Path) -> None:
    federation = Federation(tmp_path, names="", keys=False)
    federation.train(2)
    node = federation.sites[1].node
    outcome = federation.erase(f"node:{node}")
    assert (outcome.state, outcome.client) == ("promoted", f"node-{node}")


# Who asks


def test_a_client_with_a_key_of_its_own_must_ask_itself(federation: Federation) -> None:
    federation.train(2)
    generate_key_pair(federation.folder / "theirs", "site-1")
    public = home(federation) / "keys" / "site-1.pub"
    public.parent.mkdir(exist_ok=True)
    public.write_bytes((federation.folder / "theirs" / "site-1.pub").read_bytes())
    with pytest.raises(RequestError, match="'site-1' signs its own requests"):
        federation.erase("name:site-1")
    serving = federation.store.serving_digest()
    assert serving is not None
    made = new_request(
        federation="north", client="site-1", trigger="objection", model=serving, now=NOW
    )
    signed = sign_request(made, load_private_key(federation.folder / "theirs" / "site-1.key"))
    with pytest.raises(RequestError, match="the request is 'site-1''s, but the leaver is 'site-2'"):
        federation.erase("name:site-2", request=signed)
    outcome = federation.erase("name:site-1", request=signed)
    assert outcome.state == "promoted"
    assert outcome.receipt is not None
    assert not any("operator" in limit for limit in told(outcome.receipt)["limits"])


def test_asking_again_tells_what_came_of_it(federation: Federation) -> None:
    federation.train(2)
    first = federation.erase("name:site-1")
    again = federation.erase("name:site-1")
    assert (again.state, again.model, again.receipt) == (first.state, first.model, first.receipt)
    assert federation.told.has("site-1 was erased already, at 20", f"receipt {first.receipt}")
    assert federation.told.has("client 'site-1' has none of its updates left")
    assert not federation.told.has(" 0 of them")
    assert sum("is erased by" in line for line in federation.told) == 1
    assert len(federation.store.log.rounds()) == 3


# Where the server has no update


def drifting(message: Message, context: Context, call_next: Any) -> Message:
    """Send what lies far from where the others are, as one with other data does."""
    reply: Message = call_next(message, context)
    if message.metadata.group_id.startswith("secede/"):
        return reply
    content: Any = reply.content
    state = content["arrays"].to_torch_state_dict()
    draw = torch.Generator().manual_seed(1)
    far = {name: v + 0.3 * torch.randn(v.shape, generator=draw) for name, v in state.items()}
    content["arrays"] = ArrayRecord(far)
    return reply


def test_a_leaver_with_a_large_share_is_not_refused_for_it(federation: Federation) -> None:
    federation.train(1)
    leaver = federation.site("site-2")
    leaver.app = client_app(train_mods=[drifting])
    for site in federation.sites[:2]:
        site.online = False
    federation.train(1)  # in the mean are none but the leaver, with 120 of 165, and site-3
    for site in federation.sites[:2]:
        site.online = True
    shutil.copytree(federation.folder, without := federation.folder.with_name("without"))
    path = without / "home" / "rounds.jsonl"
    path.write_text(re.sub(r'"distance":[0-9.e+-]+', '"distance":null', path.read_text()))

    options = replace(OPTIONS, margins=LOOSE)
    outcome = federation.erase("name:site-2", options=options)
    assert (outcome.state, outcome.rung) == ("promoted", "local-step"), outcome.failures
    (measured,) = details(federation, "guarded")
    trace = federation.store.log.rounds()[1]
    away = next(each.distance for each in trace.clients if each.client == "site-2")
    assert away is not None
    assert measured["report"]["to_reference"] == pytest.approx(120 / 45 * away)
    assert measured["report"]["distance"] > 1.25 * measured["report"]["unit"]
    assert outcome.receipt is not None
    limits = " ".join(told(outcome.receipt)["limits"])
    assert "The guard knew the old model and a distance, not the others' mean." in limits

    old = Federation(without)  # written before distances were: the reference may be anywhere
    old.sites[2].app = leaver.app
    refused = old.erase("name:site-2", options=options)
    assert refused.rung != "local-step"
    assert "expected at most" in str(refused.failures)


def test_what_is_known_of_an_update_outlives_an_erasure(federation: Federation) -> None:
    federation.train(2)
    assert federation.erase("name:site-1").state == "promoted"
    last = federation.store.last_round()
    assert last is not None
    assert last.erased == "site-1"
    serving = federation.store.last_model()
    assert serving is not None
    for each in last.clients:
        number = each.client.removeprefix("site-")
        kept = KeptUpdates(federation.folder / f"disk-{number}" / f"partition-{number}")
        own = kept.get(str(each.digest))
        assert own is not None
        assert each.distance == pytest.approx(states.distance(own, serving), rel=1e-5)
