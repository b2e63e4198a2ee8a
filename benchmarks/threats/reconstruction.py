"""A dishonest server tries to read a client's images: by steps from models made for it, by counts.

    python -m benchmarks.threats.reconstruction [--images 100] [--network paper-cnn]

Real messages go to the client's own handler. The client hides its updates, and its owner consents
to a step. "Robbing the Fed" (Fowl and others, 2022): the first linear layer sorts images by their
brightness, so that neighbouring units' gradients differ by single images; convolutions are made to
carry the image through. Traps ("When the curious abandon honesty", Boenisch and others, 2023) are
units that fire for one image in a hundred. An image counts as read if every value of it is within
0.05, as recognisable if something returned correlates with it by 0.9.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from benchmarks.inprocess import InProcess
from benchmarks.table import table
from secede import state as states
from secede.data import catalog
from secede.data.samples import Samples
from secede.erasure import (
    GuardLimits,
    Plan,
    generate_key_pair,
    load_private_key,
    new_request,
    sign_request,
    unverified_request,
)
from secede.erasure.documents.plan import Margins, Step
from secede.erasure.planning.options import parameters
from secede.errors import SecedeError
from secede.federation.engine import LocalTraining, OwnState
from secede.federation.training import orders, train
from secede.flower import ClientErasure
from secede.flower.client.limits import ClientLimits
from secede.flower.client.tasks import ClientSite
from secede.flower.protocol import messages
from secede.models import build
from secede.seeding import generator, torch_seeded
from secede.state import State
from secede.text import one_line
from secede.unlearning import client_tasks
from secede.unlearning.registry import create

Row = tuple[str, ...]
CLOSE = 0.05  # of a value: nearer is read
PARTS = 100  # principal directions of the server's own images
ALIKE = 0.9  # a correlation with an image: it can be recognised
NODE, HOME = 100, "ab" * 16
SHARE = ClientLimits().min_share  # the smallest that a client takes a step with
EXACT = 1e-5  # of a weight: nearer is read
LIE = 0.5  # a share that the server says, to read the own update in the reference
TRAINING = LocalTraining(learning_rate=0.05, momentum=0.9, batch_size=32, epochs=5)
BARE = {"learning_rate": 1.0, "momentum": 0.0, "batch_size": 10**6, "epochs": 1, "clip": 1e12}
BOUNDED = {
    "learning_rate": 1.0,
    "momentum": 0.0,
    "batch_size": 1024,
    "epochs": 4,
    "clip": 10.0,
    "stop_distance": 1e6,
    "radius": 1e6,
}


class Lab:
    """A client that hides its updates, and a server that asks it what it likes."""

    def __init__(
        self, folder: Path, network: str, images: int, *, allows_steps: bool = False
    ) -> None:
        data: Samples = catalog.load("mnist-10k").train
        order = torch.randperm(len(data), generator=generator(0))
        self.samples, self.public = data.take(order[:images]), data.take(order[1000:3000])
        self.network, self._folder = network, folder
        erasure = ClientErasure(
            self.model,
            lambda _: (self.samples.x, self.samples.y),
            training=TRAINING,
            consent=True,
            limits=ClientLimits(hidden_steps=1 if allows_steps else 0),
        )
        app = erasure.register(ClientApp(mods=[erasure.mod]))
        self.grid = InProcess(app, 1, folder, {})
        self.site = ClientSite(
            load_model=self.model,
            samples=self.samples,
            training=TRAINING,
            device=torch.device("cpu"),
        )
        config: dict[str, bool | float | int | str] = {
            "partition-id": 0,
            "secede-folder": str(folder),
        }
        self.kept = erasure.updates(Context(1, NODE, config, RecordDict(), {}))
        self.update = self.train(states.of(self.model()))
        self._key, _ = generate_key_pair(folder / "keys", "operator")
        self.request = self.new_request()

    def new_request(self) -> str:
        """Return a request that the server makes up."""
        request = new_request(
            federation="north",
            client="site-1",
            trigger="other",
            model=states.digest(self.update),
            now=datetime.now(UTC),
        )
        return sign_request(request, load_private_key(self._key)).decode()

    def wait_a_month(self) -> None:
        """Let the client forget what it answered: each try has its whole quota."""
        (self.kept.folder / "questions.jsonl").unlink(missing_ok=True)

    def train(self, start: State) -> State:
        """Let the client train in a hidden round; return its update, which it keeps."""
        model, draw = self.model(), generator(0, "training")
        states.load_into(model, start)
        epochs = orders(len(self.samples), TRAINING.epochs, draw)
        train(model, self.samples, TRAINING, orders=epochs)
        update, size = states.of(model), float(len(self.samples))
        self.kept.put(update, run="1", number=1, samples=size, home=HOME, hidden=True, start=start)
        return update

    def model(self) -> nn.Module:
        """Return a fresh network, the same each time."""
        with torch_seeded(0):
            return build(self.network, shape=(1, 28, 28), classes=10)

    def ask(
        self,
        state: State,
        task: str,
        method: str = "",
        *,
        client: int = 0,
        share: float = SHARE,
        **settings: Any,
    ) -> Any:
        """Ask the client; return its reply, or raise what it refuses with."""
        header = messages.TaskHeader(
            task=task,
            method=method,
            settings=settings,
            client=client,
            number=0,
            weight=share if method else 0.0,
            own=self.kept.all()[0].digest if method else None,
            home=HOME,
            request=self.request,
        )
        plan = planned(self.request, method, settings) if method else ""
        question = messages.task_message(NODE, header, state, plan=plan, ttl=10)
        form = client_tasks.from_message(header.form())
        (reply,) = self.grid.send_and_receive([question])
        return messages.read_reply(reply, form, state, "site-1")

    def without_limits(
        self, state: State, task: str, method: str = "", share: float = SHARE, **settings: Any
    ) -> Any:
        """Return what a client without limits replies, as all did before."""
        form = client_tasks.TaskMessage(task, method, settings)
        own = OwnState(self.kept.newest(HOME) or {}, share)
        return self.site.run(client_tasks.from_message(form), state, own, client=0, number=0)

    # What the server makes

    def imprinted(self) -> State:
        """Return a model whose first linear layer sorts images by their brightness."""
        model = self.model()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                _pass_on(module)
        first, *others = (module for module in model.modules() if isinstance(module, nn.Linear))
        with torch.no_grad():
            inputs = self.inputs(states.of(model))
            first.weight.fill_(1 / first.in_features)
            spread = inputs.mean(dim=1).quantile(torch.linspace(0, 1, first.out_features))
            first.bias.copy_(-spread)  # the server knows such a distribution from public images
            draw = generator(0, "imprint")
            for layer in others:
                column = torch.rand((layer.out_features, 1), generator=draw)
                layer.weight.copy_(column.expand_as(layer.weight) / layer.in_features)
                layer.bias.zero_()
        return states.of(model)

    def trapped(self) -> State:
        """Return a model whose first linear layer has units that fire for few images."""
        state = self.imprinted()
        inputs, name = self.inputs(state, self.public), self._first()
        weight = torch.randn(state[f"{name}.weight"].shape, generator=generator(0, "traps"))
        weight = weight * (inputs.std(dim=0) > 0.02) / math.sqrt(inputs.shape[1])
        bias = -(inputs @ weight.T).quantile(0.99, dim=0)
        return {**state, f"{name}.weight": weight, f"{name}.bias": bias}

    def shifted(self) -> State:
        """Return the client's own model with the first layer's biases as far off as it takes."""
        name = f"{self._first()}.bias"
        update, moved = next(self.kept.known(HOME))
        bias = update[name]
        room = max(ClientLimits().model_distance * moved[name], 0.1 * float(bias.norm()))
        away = -torch.linspace(0, 1, len(bias))
        return {**self.update, name: bias + away * (0.99 * room / away.norm())}

    def inputs(self, state: State, samples: Samples | None = None) -> Tensor:
        """Return what the first linear layer gets of each image, by default of the client's."""
        x = (samples or self.samples).x
        model = self.model().eval()
        states.load_into(model, state)
        with torch.inference_mode():
            features: Tensor = model[: int(self._first())](x)  # type: ignore[index]
        return features

    def read(self, returned: State, start: State) -> int:
        """Return how many images can be read in what a step changed."""
        first = self._first()
        weight = (returned[f"{first}.weight"] - start[f"{first}.weight"]).double()
        bias = (returned[f"{first}.bias"] - start[f"{first}.bias"]).double()
        rows = torch.cat((weight, weight.diff(dim=0))) / torch.cat((bias, bias.diff()))[:, None]
        rows = rows[rows.isfinite().all(dim=1)]
        images = self.inputs(start).double()
        errors = ((rows[:, None] - images[None]).abs().amax(dim=2) for rows in rows.split(16))
        nearest = [part.amin(dim=0) for part in errors]
        return int((torch.stack(nearest).amin(dim=0) < CLOSE).sum()) if nearest else 0

    def recognise(self, returned: State, start: State) -> int:
        """Return how many images something that a step changed correlates with.

        The server takes the noise off with what images of its own are made of. An image counts if
        it is nearer to what is left than any of the server's own.
        """
        name = f"{self._first()}.weight"
        weight = (returned[name] - start[name]).double()
        rows, public = torch.cat((weight, weight.diff(dim=0))), self.inputs(start, self.public)
        parts = torch.linalg.svd(public.double(), full_matrices=False).Vh[:PARTS]
        smooth = rows @ parts.T @ parts
        guesses = _centred(torch.cat((rows, smooth, smooth.clamp(min=0), (-smooth).clamp(min=0))))
        own = (_centred(self.inputs(start).double()) @ guesses.T).abs()
        others = (_centred(public.double()) @ guesses.T).abs().amax(dim=0)
        return int((own.where(own > others, 0.0).amax(dim=1) > ALIKE).sum())

    def _first(self) -> str:
        modules: Iterator[tuple[str, nn.Module]] = self.model().named_modules()
        return next(name for name, module in modules if isinstance(module, nn.Linear))


def alike(rows: Tensor, guesses: Tensor) -> Tensor:
    """Return how each row correlates with each guess."""
    return _centred(rows) @ _centred(guesses).T


def _centred(rows: Tensor) -> Tensor:
    return nn.functional.normalize(rows - rows.mean(dim=1, keepdim=True))


def planned(signed: str, method: str, settings: Mapping[str, Any]) -> str:
    """Return a plan that fits a step, as a dishonest server makes one."""
    request = unverified_request(signed.encode())
    entry, made = create(method, settings)
    step = Step(
        rung="local-step",
        method=entry.name,
        settings=dict(settings),
        parameters=parameters(made),
        needs=(),
        max_rounds=5,
        min_rounds=1,
        upload_bytes=0,
        download_bytes=0,
    )
    plan = Plan(
        request=request.digest(),
        federation=request.federation,
        client=request.client,
        model=request.model,
        ladder=(step,),
        omitted=(),
        retained=("site-0",),
        mean="mean",
        margins=Margins(),
        guard=GuardLimits(),
        quorum=0.5,
        client_timeout=1.0,
        measure_at_leaver=False,
        leaver_timeout=1.0,
        wait_until=None,
        backups_until=None,
    )
    return plan.content().decode()


def _pass_on(layer: nn.Conv2d) -> None:
    """Let each pair of an input channel and a shift pass into a channel of its own."""
    middle = layer.kernel_size[0] // 2
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()  # type: ignore[union-attr]
        used = 1 if layer.in_channels == 1 else 4
        for place in range(4 * used):
            channel, shift = divmod(place, 4)
            layer.weight[place, channel, middle + shift // 2, middle + shift % 2] = 1.0


def pixel(lab: Lab, place: int) -> State:
    """Return a perceptron that answers 1 where a pixel is above one half, else 0."""
    state = {name: torch.zeros_like(value) for name, value in lab.update.items()}
    weights = [name for name in state if name.endswith("weight")]
    state[weights[0]][0, place] = 100.0
    for name in weights[1:]:
        state[name][0 if name != weights[-1] else 1, 0] = 1.0
    state[weights[-1].replace("weight", "bias")][0] = 50.0
    state[weights[-1].replace("weight", "bias")][2:] = -1e4
    return state


def pixels(lab: Lab, ask: Any, places: Iterable[int]) -> int:
    """Return of how many pixels the client tells in how many images of two classes they are set."""
    right, bright = 0, (lab.samples.x.flatten(1) > 0.5).long()
    for place in places:
        expected = [int(((lab.samples.y == c) & (bright[:, place] == c)).sum()) for c in (0, 1)]
        with suppress(SecedeError):
            reply = ask(pixel(lab, place), client_tasks.COUNT)
            right += reply.state["right"][:2].tolist() == expected
    return right


def answered(lab: Lab, count: int) -> int:
    """Return how many of so many questions about models like its own the client answers."""
    done = 0
    for number in range(count):
        state = {name: value + 1e-4 * number for name, value in lab.update.items()}
        with suppress(SecedeError):
            lab.ask(state, client_tasks.COUNT)
            done += 1
    return done


def steps(lab: Lab) -> Iterator[Row]:
    """Yield what comes of steps, from models made for it and from such as the client takes."""
    imprint, (ascent, bare) = lab.imprinted(), ("projected-ascent", "gradient-ascent")
    yield _step(lab, "a bare gradient, from a model made for it", imprint, bare, BARE)
    yield _step(lab, "a step within the bounds, from a model made for it", imprint, ascent, BOUNDED)
    yield _step(lab, "the same, from the client's own model", lab.update, ascent, BOUNDED)
    shifted = "the same, with its biases shifted as far as is taken"
    yield _step(lab, shifted, lab.shifted(), ascent, BOUNDED)
    lab.train(imprint)
    trained = "the same, from a model made for it that it trained in a hidden round"
    yield _step(lab, trained, imprint, ascent, BOUNDED)


def traps(lab: Lab) -> Iterator[Row]:
    """Yield what comes of a model of traps that the client trained in a hidden round."""
    state, ascent = lab.trapped(), "projected-ascent"
    settings: dict[str, Any] = {**BOUNDED, "learning_rate": 0.1}
    update = lab.train(state)
    yield _step(lab, "a step from traps, trained in a hidden round", state, ascent, settings)
    # The server can guess how far a round goes: from images of its own.
    short = {**settings, "radius": 0.02 * states.distance(update, state)}
    what = "its hidden update, out of a short step and a false share"
    yield _step(lab, what, state, ascent, short, share=LIE)


def averaged(lab: Lab, count: int = 96) -> Iterator[Row]:
    """Yield what the mean of many steps from traps tells: of its own requests, all but the same."""
    state, ascent, replies = lab.trapped(), "projected-ascent", list[State]()
    settings: dict[str, Any] = {**BOUNDED, "learning_rate": 0.1}
    lab.train(state)
    for number in range(count):
        with suppress(SecedeError):
            lab.request = lab.new_request()
            close = {name: value * (1 + 1e-6 * number) for name, value in state.items()}
            reply = lab.ask(close, client_tasks.LOCAL_STEP, ascent, **settings)
            replies.append(states.difference(reply.state, close))
    if not replies:
        return
    mean = states.shifted(state, states.mean(replies, [1.0] * len(replies)))
    before = lab.without_limits(state, client_tasks.LOCAL_STEP, ascent, **settings).state
    what = f"the mean of {count} such steps, for requests that it made up"
    told = (_images(lab, before, state), _images(lab, mean, state))
    yield lab.network, what, *told, f"takes {len(replies)} steps in thirty days"


def allowed(lab: Lab) -> Iterator[Row]:
    """Yield what the best of these tell where the client's owner allows one step for a request."""
    for number, attempt in enumerate((steps, traps, averaged)):
        folder = lab.kept.folder.parent / f"allowed-{number}"
        asked = Lab(folder, lab.network, len(lab.samples), allows_steps=True)
        for network, what, *told in attempt(asked):
            yield network, f"{what}; its owner allows a step", *told


def _step(
    lab: Lab,
    what: str,
    state: State,
    method: str,
    settings: dict[str, Any],
    *,
    share: float = SHARE,
) -> Row:
    """Return what a step tells; with a share that is a lie, what it tells of the own update."""
    task, read, said = client_tasks.LOCAL_STEP, f"0 of {len(lab.samples)} images", ""
    lab.wait_a_month()
    before = lab.without_limits(state, task, method, share=share, **settings).state
    try:
        found = lab.ask(state, task, method, share=share, **settings).state
        read, said = _images(lab, found, state), "answers, with noise"
    except SecedeError as error:
        said = one_line(error).removeprefix("client 'site-1': ").partition(":")[0].partition(",")[0]
    return lab.network, what, _images(lab, before, state), read, said


def _images(lab: Lab, returned: State, start: State) -> str:
    """Return how many images can be read in what came back: its scale and sign do not matter."""
    read, alike = lab.read(returned, start), lab.recognise(returned, start)
    return f"{read} of {len(lab.samples)} images" + (f", {alike} recognisable" if alike else "")


def values_told(lab: Lab, count: int, probes: int = 24) -> int:
    """Return how many values of its hidden update the client tells by which models it knows.

    Along each axis the known models end as far before the update's value as beyond it.
    """
    updates, draw = [update for update, _ in lab.kept.known(HOME)], generator(0, "mean")
    start = {  # a mean is near to them all
        name: value + 1e-3 * torch.randn(value.shape, generator=draw)
        for name, value in updates[0].items()
    }
    name, right = next(name for name in start if name.endswith("bias")), 0
    for place in range(count):
        ends = [_end(lab, start, name, place, sign, probes) for sign in (1.0, -1.0)]
        found = float(start[name][place]) + sum(ends) / 2
        right += any(abs(found - float(update[name][place])) < EXACT for update in updates)
    return right


def _end(lab: Lab, start: State, name: str, place: int, sign: float, probes: int) -> float:
    """Return how far along an axis the client knows models."""
    low, high = 0.0, 64.0
    for _ in range(probes):
        middle = (low + high) / 2
        value = start[name].clone()
        value[place] += sign * middle
        try:
            lab.ask({**start, name: value}, client_tasks.COUNT)
            known = True
        except SecedeError as error:
            known = "from no round" not in str(error)
        low, high = (middle, high) if known else (low, middle)
    return sign * low


def oracle(lab: Lab, count: int = 20) -> Iterator[Row]:
    """Yield what comes of asking which models the client knows."""
    told, said = values_told(lab, count), "counts such questions, too"
    yield (
        lab.network,
        "values of its hidden update, by which models it knows",
        f"0 of {count} values",
        f"{told} of {count} values",
        said,
    )


def again(lab: Lab, count: int = 24) -> int:
    """Return how many different answers the client gives about one model, asked in other words.

    Each time under another number, and to be compared with another model.
    """
    found = set[tuple[int, ...]]()
    for number in range(count):
        with suppress(SecedeError):
            reply = lab.ask(lab.update, client_tasks.COUNT, number=number, before=f"{number:064x}")
            found.add(tuple(reply.state["right"].tolist()))
    return len(found)


def asked_again(lab: Lab, count: int = 24) -> Iterator[Row]:
    """Yield what comes of asking for one count in other words: each could be rounded anew."""
    found = again(lab, count)
    what, said = "different answers about one model, asked in other words", "the same answer"
    yield lab.network, what, f"1 of {count}", f"{found} of {count}", said


def far_away(lab: Lab, count: int = 100) -> Iterator[Row]:
    """Yield how many made models it counts with after a hidden round from far away."""
    before = sum(_is_answered(lab, pixel(lab, place)) for place in range(count))
    lab.train({name: value - 1e5 for name, value in lab.update.items()})  # no unit fires
    told = sum(_is_answered(lab, pixel(lab, place)) for place in range(count))
    what = f"models made for it that it counts with: {before}; after a hidden round from far away"
    said = "knows all that are nearer; answers so many for a request, rounded"
    yield lab.network, what, f"{count} of {count}", f"{told} of {count}", said


def _is_answered(lab: Lab, state: State) -> bool:
    """Return whether the client counts with a model."""
    with suppress(SecedeError):
        lab.ask(state, client_tasks.COUNT)
        return True
    return False


def counts(lab: Lab, places: Sequence[int] = range(784)) -> Iterator[Row]:
    """Yield what comes of counting with a model for each pixel."""
    told = [f"{pixels(lab, ask, places)} of {len(places)}" for ask in (lab.without_limits, lab.ask)]
    yield lab.network, "pixels counted, by models made for it", *told, "knows no such model"


def near(lab: Lab, count: int = 784) -> Iterator[Row]:
    """Yield how many counts with models like its own the client answers."""
    few, said = answered(lab, count), "answers so many for a request, rounded"
    what = "counts with models like its own"
    yield lab.network, what, f"{count} of {count}", f"{few} of {count}", said


TRIES = (traps, allowed, counts, near, oracle, asked_again, far_away)


def markdown(images: int = 100, networks: Sequence[str] = ("mlp", "paper-cnn")) -> Iterator[str]:
    """Yield the table's lines."""
    rows = list[Row]()
    for network in networks:
        with tempfile.TemporaryDirectory() as folder:
            tries = (steps, *(TRIES if network == "mlp" else TRIES[:2]))
            for number, attempt in enumerate(tries):
                rows += attempt(Lab(Path(folder) / str(number), network, images))
    columns = ("network", "what is asked", "without limits", "with", "the client")
    yield from table(columns, rows).splitlines()


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--network", nargs="+", default=["mlp", "paper-cnn"])
    arguments = parser.parse_args()
    for line in markdown(arguments.images, arguments.network):
        print(line)


if __name__ == "__main__":
    main()
