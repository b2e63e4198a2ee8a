"""What runs at a hospital."""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hospitals import task
from secede.federation.engine import LocalTraining
from secede.flower import ClientErasure

training = LocalTraining(
    learning_rate=task.RATE, momentum=0.0, batch_size=task.BATCH, epochs=task.EPOCHS
)
erasure = ClientErasure(task.load_model, task.load_data, training=training, consent=True)
app = ClientApp(mods=[erasure.mod])
erasure.register(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the hospital's own images and send the model back."""
    model = task.load_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = task.load_data(context)
    number = message.content.config_records["config"]["server-round"]
    task.train(model, x, y, int(str(number)))
    metrics = MetricRecord({"num-examples": len(y)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(reply, reply_to=message)


@app.query("name")
def tell_name(message: Message, context: Context) -> Message:
    """Say who this is: a simulation's nodes have no names of their own."""
    told = ConfigRecord({"name": task.name_of(context)})
    return Message(RecordDict({"told": told}), reply_to=message)
