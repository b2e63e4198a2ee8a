"""Who is erased stays out of every later round, whenever it comes and whatever it is called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from harness.flower.inprocess import InProcess
from harness.flower.small import Federation
from secede.errors import ConfigError, SilentError
from secede.flower import recording
from secede.flower.protocol.nodes import Node, Roster, check_names, node_of
from secede.flower.rounds.grid import prepared


class Arriving(InProcess):
    """A grid on which a site comes online when somebody has looked some times."""

    def __init__(self, federation: Federation, name: str, looks: int) -> None:
        federation.grid()
        super().__init__(federation.sites, federation.app, run=federation.runs)
        self._site, self._left = federation.site(name), looks

    def get_nodes(self) -> Iterable[Any]:
        self._left -= 1
        if self._left == 0:
            self._site.online = True
        return super().get_nodes()


def contributors(federation: Federation) -> list[str]:
    last = federation.store.last_round()
    assert last is not None
    return [each.client for each in last.clients]


@pytest.mark.parametrize("phase", ["train", "evaluate"])
@pytest.mark.parametrize("looks", [1, 2, 3])
def test_an_erased_client_that_comes_while_sampling_waits_is_not_taken(
    federation: Federation, looks: int, phase: str
) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    federation.site("site-1").online = federation.site("site-3").online = False
    grid = Arriving(federation, "site-1", looks)
    least: dict[str, Any] = {f"min_{phase}_nodes": 3, "min_available_nodes": 3}
    waiting = recording(FedAvg(**least), federation.store, online_timeout=0.2)
    federation.site("site-1").seen.clear()
    model = ArrayRecord(federation.store.last_model() or {})
    with pytest.raises(SilentError, match="too few clients came"):
        getattr(waiting, f"configure_{phase}")(1, model, ConfigRecord({}), grid)
    assert federation.site("site-1").online
    assert federation.site("site-1").seen == []


def test_an_erased_client_under_a_new_name_is_known_by_its_key(federation: Federation) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    federation.site("site-1").name = "site-one"
    federation.sites[1].seen.clear()
    federation.train(1)
    assert federation.sites[1].seen == []
    assert contributors(federation) == ["site-0", "site-2", "site-3"]
    assert federation.told.has("not admitted", "'site-one'", "erased")


def test_a_client_that_changes_its_name_keeps_the_recorded_one(federation: Federation) -> None:
    federation.train(2)
    federation.site("site-1").name = "site-one"
    federation.train(2)
    assert contributors(federation) == ["site-0", "site-1", "site-2", "site-3"]
    leaver = federation.sites[1]
    leaver.seen.clear()
    with pytest.raises(ConfigError, match="matches 0 clients"):
        federation.erase("name:site-one")
    outcome = federation.erase(f"key:{federation.store.clients()[1].key}")
    assert (outcome.state, outcome.client) == ("promoted", "site-1")
    assert "train" not in leaver.seen


def test_a_log_with_one_key_under_two_names_is_refused(federation: Federation) -> None:
    federation.train(2)
    path = federation.folder / "home" / "rounds.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second.replace('"site-1"', '"site-one"') + "\n")
    with pytest.raises(ConfigError, match="'site-1' and 'site-one' are one client"):
        federation.erase("name:site-one")


def test_a_stranger_with_a_known_name_is_not_taken_for_its_owner(federation: Federation) -> None:
    federation.train(2)
    federation.site("site-1").key = b"another key"
    federation.train(1)
    assert contributors(federation) == ["site-0", "site-2", "site-3"]
    assert federation.told.has("not admitted", "'site-1'", "it has the name of another client")
    federation.site("site-1").key = b"public key 1"
    assert federation.erase("name:site-1").state == "promoted"


def test_a_strategy_that_sends_past_the_grid_is_refused(federation: Federation) -> None:
    class Everybody(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return super().configure_train(server_round, arrays, config, grid.inner.inner)

    federation.train(2)
    federation.erase("name:site-1")
    begin = ArrayRecord(federation.store.last_model() or {})
    with pytest.raises(ConfigError, match="'Everybody' sends to node"):
        recording(Everybody(fraction_evaluate=0.0), federation.store).start(
            federation.grid(), begin, num_rounds=1, timeout=5
        )


def test_without_names_and_keys_no_stranger_is_taken_after_an_erasure(
    federation: Federation,
) -> None:
    nameless = Federation(federation.folder / "nameless", names="", keys=False)
    nameless.train(2)
    assert nameless.erase(f"node:{nameless.sites[1].node}").state == "promoted"
    nameless.train(1)  # in the same run ids stay, and the others are known by them
    assert len(contributors(nameless)) == 3
    for site in nameless.sites:
        site.node += 1000  # the next run draws new ids
    with pytest.raises(SilentError, match="of the known ones 0 may take part"):
        nameless.train(1)
    assert nameless.told.has("not admitted", "neither name nor key", "give nodes names or keys")


def test_an_erased_client_without_a_registered_name_stays_out_under_a_new_key(
    federation: Federation,
) -> None:
    insecure = Federation(federation.folder / "insecure", names="")  # with keys nobody registered
    insecure.train(2)
    assert insecure.erase(f"node:{insecure.sites[1].node}").state == "promoted"
    insecure.sites[1].node += 1000  # it was restarted
    insecure.sites[1].key = b"another key"
    insecure.sites[1].seen.clear()
    insecure.train(1)
    assert insecure.sites[1].seen == []
    assert len(contributors(insecure)) == 3
    assert insecure.told.has("not admitted", f"node-{insecure.sites[1].node}", "give nodes names")


def test_after_an_erasure_unknown_unnamed_nodes_stay_out_even_of_a_named_federation(
    federation: Federation,
) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    federation.sites[1].name, federation.sites[1].key = "", b"a new one"
    federation.sites[1].node += 1000
    federation.sites[1].seen.clear()
    federation.train(1)
    assert federation.sites[1].seen == []
    assert federation.told.has("not admitted", "may be site-1, which was erased")


class InMemoryGrid(InProcess):
    """A grid as in Flower's simulation: no names, and new ids and keys in each run."""

    def get_nodes(self) -> Iterable[Any]:
        found = list(super().get_nodes())
        for place, node in enumerate(found):
            node.registered_at = f"2026-11-15T12:00:00.{place:06}+00:00"
        return reversed(found)


def simulation(federation: Federation) -> InMemoryGrid:
    federation.grid()
    for site in federation.sites:
        site.node += 1000
        site.key = f"{site.node}".encode()
    return InMemoryGrid(federation.sites, federation.app, run=federation.runs)


def test_an_erased_client_of_a_simulation_stays_out_of_the_next_one(
    federation: Federation,
) -> None:
    simulated = Federation(federation.folder / "simulated", names="")
    simulated.train(2, grid=simulation(simulated))
    assert contributors(simulated) == [f"partition-{n}" for n in range(4)]
    outcome = simulated.erase("name:partition-1", grid=simulation(simulated))
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")  # its own folder was found
    simulated.sites[1].seen.clear()
    simulated.train(1, grid=simulation(simulated))
    assert contributors(simulated) == ["partition-0", "partition-2", "partition-3"]
    assert simulated.sites[1].seen == []
    assert simulated.told.has("not admitted: client 'partition-1': it was erased")


def test_flowers_simulation_makes_nodes_in_the_order_of_partitions() -> None:
    from flwr.server.superlink.fleet.vce.vce_api import _register_nodes
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid as Simulated

    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    partitions = _register_nodes(20, factory)

    class Grid(Simulated):
        def get_nodes(self) -> Iterable[Any]:
            return self.state.get_node_info(node_ids=sorted(partitions))

    Grid.__name__ = "InMemoryGrid"
    named = prepared(Grid(factory)).get_nodes()
    assert {node.node_id: node.name for node in named} == {
        node: f"partition-{place}" for node, place in partitions.items()
    }
    assert not any(node_of(node).key for node in named)


def test_a_client_may_be_called_as_nameless_ones_are(federation: Federation) -> None:
    keyless = Federation(federation.folder / "keyless", names="node-{}", keys=False)
    keyless.train(2)
    for site in keyless.sites:
        site.node += 100
    assert keyless.erase("name:node-1").rung == "local-step"


def test_a_strategy_records_into_one_store(federation: Federation) -> None:
    first = federation.recording()
    assert recording(first, federation.store) is first
    other = Federation(federation.folder / "other").store
    with pytest.raises(ConfigError, match=r"records into .*home already"):
        recording(first, other)


def test_one_client_has_one_name() -> None:
    check_names([Node(name="a", node=1, key="k"), Node(name="a", node=2, key="k")])
    with pytest.raises(ConfigError, match="'a' and 'b' are one client"):
        check_names([Node(name="a", node=1, key="k"), Node(name="b", node=1, key="k")])


def test_a_newcomer_is_taken_under_its_own_name() -> None:
    known = Node(name="a", node=1, key="k")
    roster = Roster([known], {"a"})
    new = Node(name="b", node=2, key="l")
    assert roster.refusal(new) is None
    assert roster.named(new) == new
    assert roster.refusal(Node(name="x", node=3, key="k")) == "it was erased"
    assert roster.refusal(Node(name="a", node=4)) is not None
    assert Roster([], {"a"}).refusal(Node(name="a", node=4)) is not None


def test_hidden_clients_are_told_of_once(federation: Federation) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    federation.told.clear()
    federation.recording().start(
        federation.grid(), ArrayRecord(federation.store.last_model() or {}), num_rounds=2, timeout=5
    )
    assert sum("not admitted" in line for line in federation.told) == 1
