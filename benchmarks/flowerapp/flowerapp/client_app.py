"""A client that keeps its updates in some rounds and not in others, and times what that takes."""

from __future__ import annotations

import time
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flowerapp import task
from secede.flower import ClientErasure

erasure = ClientErasure(task.load_model, task.load_data, consent=True)


def in_turns(message: Message, context: Context, call_next: Any) -> Message:
    """Pass plain rounds by; in others, tell how long the mod itself took."""
    config = message.content.config_records.get("config")
    if config is not None and config.get("plain"):
        return call_next(message, context)
    inside, inside_cpu = 0.0, 0.0

    def timed(message: Message, context: Context) -> Message:
        nonlocal inside, inside_cpu
        begun, cpu = time.perf_counter(), time.process_time()
        reply = call_next(message, context)
        inside, inside_cpu = time.perf_counter() - begun, time.process_time() - cpu
        return reply

    begun, cpu = time.perf_counter(), time.process_time()
    reply = erasure.mod(message, context, timed)
    if reply.has_content() and "metrics" in reply.content.metric_records:
        told = reply.content.metric_records["metrics"]
        told["own-seconds"] = time.perf_counter() - begun - inside
        told["own-seconds-cpu"] = time.process_time() - cpu - inside_cpu
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
