from __future__ import annotations

import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fastapp import task
from secede.flower import ClientErasure


def slowly(message, context, call_next):  # type: ignore[no-untyped-def]
    """Take some time, so that a test can kill something meanwhile."""
    time.sleep(float(context.run_config["slow-seconds"]))
    return call_next(message, context)


erasure = ClientErasure(task.load_model, task.load_data, consent=True)
app = ClientApp(mods=[slowly, erasure.mod])
erasure.register(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    model = task.load_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = task.load_data(context)
    task.train(model, x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(reply, reply_to=message)
