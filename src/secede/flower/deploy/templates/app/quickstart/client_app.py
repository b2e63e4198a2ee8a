"""What a site does: train on its own images, and test on others of its own."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data, test, train
from secede.flower import CanaryOptions, ClientErasure

erasure = ClientErasure(Net, load_data, canaries=CanaryOptions(max_share=0.1))
app = erasure.register(ClientApp(mods=[erasure.mod]))


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train the global model on this site's images and send it back."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(context)
    loader = erasure.with_canaries(loader, context)
    loss = train(model, loader, float(message.content["config"]["learning-rate"]))
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def test_here(message: Message, context: Context) -> Message:
    """Test the global model on images that this site does not train on."""
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, loader = load_data(context)
    metrics = MetricRecord({"accuracy": test(model, loader), "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
