"""What does not fit SecAgg+ is refused before anybody trains (`flower/client/secagg_checks.py`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.client.mod import LocalDpMod, message_size_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAdam
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg

from harness.flower.secure import (
    EXACT,
    LEAVER,
    OTHERS,
    SecureFederation,
    disk,
    one_line,
    reference_error,
    strategy,
    train_here,
)
from harness.flower.small import OPTIONS, SIZES, Federation, client_app, initial
from secede.errors import ConfigError, GuardError, SilentError
from secede.flower import plan, recording, secure_recording
from secede.flower.secagg import legacy_api


def around(message: Message, context: Context, call_next: Any) -> Message:
    return secaggplus_mod(message, context, call_next)


def test_with_secaggs_mod_inside_of_ours_nobody_trains(tmp_path: Path) -> None:
    federation = SecureFederation(tmp_path, hide=(), inside=(around,))
    with pytest.raises(GuardError, match=r"secaggplus_mod must come before erasure\.mod"):
        federation.train(1)
    assert not disk(federation, 0).all()


def test_updates_are_kept_outside_of_the_noise_and_inside_secagg(tmp_path: Path) -> None:
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=1.0, delta=1e-2)
    federation = SecureFederation(tmp_path, inside=[noise])
    federation.train(2)
    error = reference_error(federation, LEAVER, OTHERS)
    assert error < EXACT


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize(
    "mods",
    [
        {"around": [message_size_mod]},
        {"hide": (), "inside": [secaggplus_mod]},
        {"hide": (), "around": [message_size_mod], "inside": [secaggplus_mod]},
    ],
    ids=["between", "inside", "apart"],
)
def test_a_mod_that_does_not_follow_secaggs_is_refused_at_once(
    tmp_path: Path, mods: Any, by_function: bool
) -> None:
    with pytest.raises(ConfigError) as error:
        SecureFederation(tmp_path, by_function=by_function, **mods)
    one_line(error, "erasure.mod must directly follow secaggplus_mod", "mods=[")


def test_who_keeps_no_update_is_named_in_the_first_round(federation: SecureFederation) -> None:
    app = ClientApp(mods=[secaggplus_mod])
    app.train()(train_here)
    federation.app = app
    federation.train(2)
    for name in ("site-0", "site-3"):
        said = [line for line in federation.told if f"{name!r} reports no update" in line]
        assert len(said) == 1


# What is refused, in one line


def test_a_model_that_was_trained_under_secagg_is_not_erased_from_in_the_open(
    federation: SecureFederation,
) -> None:
    federation.train(2)
    before = [len(site.seen) for site in federation.sites]
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", secure=None, strategy=FedAvg())
    one_line(error, "trained under secure aggregation", "secure=")
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", secure=None)
    one_line(error, "legacy stack", "secure=")
    assert [len(site.seen) for site in federation.sites] == before


def test_a_model_that_was_trained_in_the_open_is_not_erased_from_under_secagg(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path)
    federation.train(2)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", secure=SecAggPlusWorkflow(3, 2))
    one_line(error, "'FedAvg' of flwr.serverapp", "flwr.server.strategy")
    with pytest.raises(ConfigError) as error:
        plan(
            federation.grid(),
            strategy(),
            federation.store,
            leaver="name:site-1",
            secure=SecAggPlusWorkflow(3, 2),
        )
    one_line(error, "trained in the open", "leave out secure=")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (replace(OPTIONS, mean="median"), ("--aggregation median needs single updates",)),
        (
            replace(OPTIONS, methods=("reference",), settings={}),
            ("'reference' is a baseline",),
        ),
        (
            replace(OPTIONS, methods=("orthogonal-descent",), settings={}),
            ("more of clients than a live federation can send", "weight-negation, retrain"),
        ),
    ],
)
def test_what_cannot_be_done_with_hidden_updates_is_refused(
    federation: SecureFederation, options: Any, words: tuple[str, ...]
) -> None:
    federation.train(1)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", options=options)
    one_line(error, *words)


@pytest.mark.parametrize(
    ("strategy_of", "secure", "words"),
    [
        (FedAvg, SecAggPlusWorkflow(3, 2), ("'FedAvg' of flwr.serverapp", "LegacyContext")),
        (strategy, DefaultWorkflow(), ("'DefaultWorkflow'", "SecAggPlusWorkflow")),
        (
            lambda: FedAdam(initial_parameters=legacy_api.to_parameters({})),
            SecAggPlusWorkflow(3, 2),
            ("'FedAdam'", "its server optimiser has a memory"),
        ),
        (strategy, SecAggPlusWorkflow(5, 4), ("SecAgg+ needs 4 of 3 shares", "3 clients are left")),
    ],
)
def test_workflows_and_strategies_that_do_not_fit_are_refused(
    federation: SecureFederation, strategy_of: Any, secure: Any, words: tuple[str, ...]
) -> None:
    federation.train(1)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1", strategy=strategy_of(), secure=secure)
    one_line(error, *words)


@pytest.mark.parametrize(
    ("shares", "threshold", "clients", "enough"),
    [
        (1.0, 0.5, 2, True),
        (1.0, 1.0, 5, True),
        (0.6, 0.5, 5, True),
        (3, 2, 4, True),
        (5, 3, 3, True),
        (5, 4, 3, False),
        (5, 1.0, 4, False),
    ],
)
def test_whether_so_many_can_end_a_round_is_known_before(
    federation: SecureFederation, shares: float, threshold: float, clients: int, enough: bool
) -> None:
    federation.secure = SecAggPlusWorkflow(shares, threshold)
    masked = legacy_api.check_secagg(strategy(), federation.secure)
    if enough:
        masked.check_enough(clients)
    else:
        with pytest.raises(ConfigError, match="smaller reconstruction_threshold"):
            masked.check_enough(clients)
    if clients <= len(SIZES):  # and so it is
        for site in federation.sites[clients:]:
            site.online = False
        federation.train(1)
        assert (federation.store.last_round() is not None) == enough


def test_one_client_alone_would_be_left_and_cannot_hide(federation: SecureFederation) -> None:
    for name in ("site-2", "site-3"):
        federation.site(name).online = False
    federation.train(1)
    with pytest.raises(ConfigError) as error:
        federation.erase("name:site-1")
    one_line(error, "one client alone cannot hide its update")


@pytest.mark.parametrize(
    "workflow", [DefaultWorkflow(), SecAggPlusWorkflow(3, 2)], ids=["open", "bare"]
)
def test_a_workflow_that_does_not_hide_is_not_recorded_securely(
    federation: SecureFederation, workflow: Any
) -> None:
    with pytest.raises(ConfigError) as error:
        secure_recording(workflow, federation.store)
    one_line(error, "does not hide updates", "fit_workflow=SecAggPlusWorkflow")


def test_a_legacy_strategy_is_not_recorded_in_the_open(federation: SecureFederation) -> None:
    with pytest.raises(ConfigError) as error:
        recording(strategy(), federation.store)  # type: ignore[arg-type]
    one_line(error, "legacy stack", "secure_recording")


def test_a_strategy_that_changes_the_mean_is_found_out(federation: SecureFederation) -> None:
    class Half(LegacyFedAvg):
        def aggregate_fit(self, *given: Any) -> Any:
            found, metrics = super().aggregate_fit(*given)
            assert found is not None
            state = legacy_api.to_state(found, federation.store.template)
            return legacy_api.to_parameters({n: v / 2 for n, v in state.items()}), metrics

    context = federation.legacy(1)
    begin = legacy_api.to_parameters(initial())
    context.strategy = Half(fraction_evaluate=0.0, initial_parameters=begin)
    workflow = secure_recording(DefaultWorkflow(fit_workflow=federation.secure), federation.store)
    with pytest.raises(ConfigError, match="'Half' changes the weighted mean"):
        workflow(federation.grid(), context)
    assert federation.store.last_round() is None


def test_a_strategy_without_initial_parameters_is_refused(federation: SecureFederation) -> None:
    with pytest.raises(ConfigError) as error:
        federation.train(1, initial_parameters=None)
    one_line(error, "no initial_parameters")


def test_too_few_clients_are_waited_for_and_not_for_ever(federation: SecureFederation) -> None:
    with pytest.raises(SilentError, match=r"too few clients came within 0\.3 seconds"):
        federation.train(1, min_available_clients=9)


def test_recording_clients_that_hide_their_updates_is_refused_and_they_send_none(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path, app=client_app([secaggplus_mod]))
    grid = federation.grid()
    with pytest.raises(ConfigError, match=r"hide their updates .* secure_recording"):
        federation.train(1, grid=grid)
    assert grid.bytes_up == 0
    assert federation.store.last_round() is None
