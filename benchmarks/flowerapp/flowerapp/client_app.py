"""A client that keeps its updates in some rounds and not in others, and times what that takes."""

from __future__ import annotations

import time
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flowerapp import task
from secede.flower import ClientErasure

erasure = ClientErasure(task.load_model, task.load_data)


def in_turns(message: Message, context: Context, call_next: Any) -> Message:
    """Pass plain rounds by; in others, tell how long the mod itself took."""
    config = message.content.config_records.get("config")
    if config is not None and config.get("plain"):
        return call_next(message, context)
    inside = 0.0

    def timed(message: Message, context: Context) -> Message:
        nonlocal inside
        begun = time.perf_counter()
        reply = call_next(message, context)
        inside += time.perf_counter() - begun
        return reply

    begun = time.perf_counter()
    reply = erasure.mod(message, context, timed)
    if reply.has_content() and "metrics" in reply.content.metric_records:
        own = time.perf_counter() - begun - inside
        reply.content.metric_records["metrics"]["own-seconds"] = own
    return reply


app = ClientApp(mods=[in_turns])
erasure.register(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's images."""
    model = task.load_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = task.load_data(context)
    task.train(model, x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(reply, reply_to=message)
