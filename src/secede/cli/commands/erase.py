"""`secede erase`: erase a client from a simulated federation, from request to receipt.

The options here are those of `secede flower erase` too.
"""

from __future__ import annotations

import functools
import inspect
import logging
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from rich.console import Console

from secede.cli.progress import repeating_when_quiet
from secede.cli.shared import HomeFolder, Json, naming, print_json
from secede.errors import ConfigError, RequestError, RolledBackError, StoppedError, TrustError

if TYPE_CHECKING:
    from secede.erasure import EraseOptions, GuardLimits, Margins, Outcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EraseArguments:
    """What was given on the command line; the defaults are those of `EraseOptions`."""

    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan. Nobody is asked, nothing is written.")
    ] = False
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Use this method on its rung instead of the usual one, and begin with that "
            "rung. Repeatable.",
        ),
    ] = None
    rehearsal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Use the method that `secede rehearse` named in this file, with its rounds and "
            "settings.",
        ),
    ] = None
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain", help="Retrain from scratch at once. Short for --from-rung retraining."
        ),
    ] = False
    from_rung: Annotated[
        Literal["local-step", "server-side", "retraining"] | None,
        typer.Option(help="Begin with this rung of the ladder. [default: the first possible one]"),
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.KEY=VALUE", help="Set up a method. Repeatable."),
    ] = None
    min_rounds: Annotated[
        int,
        typer.Option(
            min=0,
            help="Minimum number of post-training rounds after a local step. With 0, the state "
            "returned by the leaver may go into service unchanged.",
        ),
    ] = 1
    max_rounds: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Maximum number of post-training rounds on each rung.",
            show_default="5 after a local step, 10 after a server-side method",
        ),
    ] = None
    aggregation: Annotated[
        Literal["mean", "trimmed", "median"],
        typer.Option(
            help="How post-training combines updates. `trimmed` and `median` resist malicious "
            "clients; see docs/threats.md."
        ),
    ] = "mean"
    untrusted_leaver: Annotated[
        bool,
        typer.Option("--untrusted-leaver", help="Accept nothing from the leaver: no local step."),
    ] = False
    leaver_gone: Annotated[
        bool,
        typer.Option("--leaver-gone", help="Skip the local step: the leaver will not come back."),
    ] = False
    leaver_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to wait for the leaver's reply.")
    ] = 3600.0
    wait_hours: Annotated[
        float,
        typer.Option(
            min=0,
            help="Hours to keep asking a silent leaver, or too few others, before the next rung.",
        ),
    ] = 0.0
    client_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to wait for another client's reply.")
    ] = 3600.0
    quorum: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Fraction of the retained clients' samples that must take part in each round.",
        ),
    ] = 0.5
    min_distance: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Refuse a state that is nearer than this to a known one. With 0, only exact "
            "copies are refused; see docs/threats.md.",
        ),
    ] = 0.001
    keep_unused_weights: Annotated[
        bool,
        typer.Option(
            "--keep-unused-weights",
            help="Keep weights that the retained clients' training does not use. Only for a "
            "leaver that is trusted.",
        ),
    ] = False
    measure_at_leaver: Annotated[
        bool,
        typer.Option(
            "--measure-at-leaver/--no-measure-at-leaver",
            help="Send the erased model to the leaver, which reads its canaries and counts its "
            "right answers. Without it, whether a trace is left stays undetermined.",
        ),
    ] = True
    backups_until: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="Last day on which a backup of deleted data may exist, for the receipt.",
        ),
    ] = None

    margin: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            metavar="POINTS",
            help="Loss of accuracy over all samples that the gate allows, as in --margin 2.5.",
        ),
    ] = 5.0
    class_margin: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            metavar="POINTS",
            help="The same for a class, as in --class-margin 20. A class may fall further where "
            "all samples together rise, and after retraining.",
        ),
    ] = 10.0
    accept_loss: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Put a retrained model into service even if it lost more accuracy than the "
            'margin, with this reason in the receipt, as in --accept-loss "consent withdrawn". '
            "Can be given when the command is repeated.",
        ),
    ] = None

    def options(self) -> EraseOptions:
        """Return what the erasure is to do; check it before any work is done."""
        from secede.erasure import EraseOptions, check_options
        from secede.unlearning import create

        until = self.backups_until and self.backups_until.replace(tzinfo=UTC)
        if until is not None and until.date() < datetime.now(UTC).date():
            raise ConfigError(f"--backups-until {until:%Y-%m-%d} is past: give a day to come")
        if self.retrain and self.from_rung not in (None, "retraining"):
            raise ConfigError(f"--retrain and --from-rung {self.from_rung}: give one of the two")
        settings = _settings(self.set_ or ())
        if self.rehearsal is not None:
            return self._rehearsed(self.rehearsal, settings).options()
        for name in dict.fromkeys([*(self.method or ()), *settings]):
            create(name, settings.get(name))
        default = EraseOptions()
        limit = self.max_rounds
        options = EraseOptions(
            methods=tuple(self.method or ()),
            from_rung="retraining" if self.retrain else self.from_rung,
            settings=settings,
            untrusted_leaver=self.untrusted_leaver,
            max_rounds=default.max_rounds if limit is None else limit,
            max_server_rounds=default.max_server_rounds if limit is None else limit,
            min_rounds=self.min_rounds,
            mean=self.aggregation,
            margins=_margins(self.margin, self.class_margin),
            leaver_timeout=self.leaver_timeout,
            wait=timedelta(hours=self.wait_hours),
            guard=_limits(self.min_distance),
            quorum=self.quorum,
            client_timeout=self.client_timeout,
            measure_at_leaver=self.measure_at_leaver,
            keep_unused_weights=self.keep_unused_weights,
            backups_until=until,
            accept_loss=self.accept_loss or "",
        )
        check_options(options)
        return options

    def _rehearsed(self, path: Path, settings: dict[str, dict[str, Any]]) -> EraseArguments:
        """Return these arguments with what a rehearsal named; what is given here comes first."""
        from secede.experiments.rehearsal import load_rehearsal

        found = load_rehearsal(path)
        for option, given in (
            ("--method", self.method),
            ("--retrain", self.retrain),
            ("--from-rung", self.from_rung),
        ):
            if given:
                raise ConfigError(f"--rehearsal and {option}: give one of the two")
        if found.choice is None:
            raise ConfigError(f"{path}: {found.reason}")
        rest = replace(self, rehearsal=None)
        if found.choice == "retrain":
            return replace(rest, retrain=True)
        lines = [
            f"{found.choice}.{key}={dumps(value)}"
            for key, value in found.settings.items()
            if key not in settings.get(found.choice, {})
        ]
        rounds = found.max_rounds if self.max_rounds is None else self.max_rounds
        method, set_ = [found.choice], [*(self.set_ or ()), *lines]
        return replace(rest, method=method, set_=set_, max_rounds=rounds)

    def check_rehearsal(self, home: Path, leaver: str | None = None) -> None:
        """Raise if a rehearsal is given that does not fit the home."""
        if self.rehearsal is not None:
            from secede.experiments.rehearsal import load_rehearsal

            load_rehearsal(self.rehearsal).check_fits(home, leaver)


def with_erase_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the fields of `EraseArguments` in the place of a command's parameter `arguments`."""
    hints = get_type_hints(EraseArguments, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(field.name, kind, default=field.default, annotation=hints[field.name])
        for field in fields(EraseArguments)
    ]
    signature = inspect.signature(command, eval_str=True)
    parameters = list[inspect.Parameter]()
    for parameter in signature.parameters.values():
        shared = parameter.name == "arguments"
        parameters += options if shared else [parameter.replace(kind=kind)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = {option.name: values.pop(option.name) for option in options}
        command(**values, arguments=EraseArguments(**given))

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def read_request_file(path: Path) -> bytes:
    """Return a signed request, not verified; ConfigError if the file is plainly another one.

    A damaged request is returned: verifying it says what is wrong.
    """
    from secede.erasure import ENVELOPE_FIELDS, MAX_REQUEST_BYTES, parse_json, read_bounded

    kind = "is a folder and" if path.is_dir() else "is"
    other = ConfigError(
        f"{path} {kind} no request: give the file that `secede request` wrote, request.json "
        "unless --out named another"
    )
    if path.is_dir():
        raise other
    try:
        data = read_bounded(path, MAX_REQUEST_BYTES)
    except TrustError as error:  # longer than any request
        raise other from error
    if not data.startswith(b"{"):
        raise other
    with suppress(TrustError):
        if not ENVELOPE_FIELDS & parse_json(data, MAX_REQUEST_BYTES).keys():
            raise other
    return data


def _limits(min_distance: float) -> GuardLimits:
    from pydantic import ValidationError

    from secede.erasure import GuardLimits, describe_errors

    line = min(min_distance, GuardLimits().min_line_distance)
    try:
        return GuardLimits(min_distance=min_distance, min_line_distance=line)
    except ValidationError as error:
        reason = describe_errors(error)
        raise ConfigError(f"--min-distance {min_distance} cannot be used: {reason}") from error


def _margins(overall: float, per_class: float) -> Margins:
    from pydantic import ValidationError

    from secede.erasure import Margins, describe_errors

    try:
        return Margins(overall=overall / 100, per_class=per_class / 100)
    except ValidationError as error:
        reason = describe_errors(error)
        raise ConfigError(
            f"--margin {overall} with --class-margin {per_class} cannot be used: {reason}"
        ) from error


def _settings(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read METHOD.KEY=VALUE, values as in TOML."""
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        method, dot, key = name.rpartition(".")
        if not (equals and dot and method and key):
            raise ConfigError(f"--set {text!r} cannot be used: give METHOD.KEY=VALUE")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        settings.setdefault(method, {})[key] = parsed
    return settings


@with_erase_options
def erase(
    request: Annotated[Path, typer.Argument(help="The signed request.")],
    folder: HomeFolder,
    arguments: EraseArguments,
    json: Json = False,
) -> None:
    """Erase a client, from its signed request to a receipt.

    The ladder has three rungs: a local step at the leaver; a server-side method, if the leaver is
    gone, silent or refused; retraining. The next rung follows when the retained clients' accuracy
    falls too far. Interrupted or killed, the same command continues where it stopped.

    The federation is one that `secede federation init` trained. For a live one see `secede flower
    erase` and docs/nvflare.md.

    Example: secede erase request.json --home home --dry-run

    Another: secede erase request.json --home home --retrain
    """
    from secede.erasure import Home, plan_table, receive, verify_request
    from secede.erasure import erase as run_erasure
    from secede.erasure import plan as make_plan
    from secede.simulation.backend import Recipe, SimulatedBackend

    check_simulated(folder)
    options, home, now = arguments.options(), Home(folder), datetime.now(UTC)
    data = read_request_file(request)
    with naming(request):
        document = verify_request(
            data, home.client_keys(), federation=home.federation.name, server=home.server_id
        )
    arguments.check_rehearsal(folder, document.client)
    gone = (document.client,) if arguments.leaver_gone else ()
    if arguments.dry_run:
        backend = SimulatedBackend(home, gone=gone)
        plan = make_plan(home, backend, document, options=options, now=now)
        if json:
            print(plan.model_dump_json(indent=2))
        else:
            Console().print(plan_table(plan))
        return
    key = home.server_key()  # before any work is done
    Recipe.load(home)
    entry = receive(home, data, now)
    logger.info(f"request {entry.id} of {entry.client}, due {entry.due:%Y-%m-%d}")
    logger.info(f"acknowledgement for {entry.client}: {home.acknowledgement_path(entry.digest)}")
    try:
        with repeating_when_quiet():
            outcome = run_erasure(
                home,
                SimulatedBackend(home, gone=gone),
                entry.id,
                key=key,
                clock=lambda: datetime.now(UTC),
                options=options,
            )
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command continues from here") from None
    _print_outcome(outcome, as_json=json)


def check_simulated(home: Path) -> None:
    """Raise if a home belongs to a live federation, and say which command reaches that."""
    live = {
        "flower": "Flower federation: run `secede flower erase PROJECT name:CLIENT`, or call "
        "secede.flower.erase() in the server app (docs/flower.md)",
        "nvflare": "NVFlare federation: run the erasure's job (docs/nvflare.md)",
        None: "federation that nobody was erased from yet: run `secede flower erase PROJECT "
        "name:CLIENT` (docs/flower.md), or the erasure's job on NVFlare (docs/nvflare.md)",
    }
    engine = None
    with suppress(OSError, ValueError):  # what is damaged is reported by whoever needs it
        recipe = loads((home / "recipe.json").read_bytes())
        engine = str(recipe["engine"]) if "engine" in recipe else None
    if engine in live and (engine or (home / "rounds.jsonl").exists()):
        raise ConfigError(f"{home} is the home of a live {live[engine]}")


def _print_outcome(outcome: Outcome, *, as_json: bool) -> None:
    """Print how an erasure ended; raise if it did not end with a new model."""
    if as_json:
        row = asdict(outcome)
        for key in ("receipt", "page"):
            row[key] = row[key] and str(row[key])
        row["failures"] = [
            failure.model_dump(include={"rung", "method", "outcome", "reason"})
            for failure in outcome.failures
        ]
        print_json(row)
    if outcome.state == "refused":
        raise RequestError(f"request {outcome.request} is refused: {outcome.reason}")
    if outcome.state == "rolled-back":
        raise RolledBackError(f"request {outcome.request} is rolled back: {outcome.reason}")
    if as_json:
        return
    print(f"{outcome.client} is erased: {outcome.method} ({outcome.rung})")
    print(f"model {outcome.model} serves")
    print(f"receipt {outcome.receipt}")
    print(f"page {outcome.page}")
