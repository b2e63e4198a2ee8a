"""What arms, scores, scenarios and data sets are called in the records, and on the page."""

from __future__ import annotations

FEDAVG = "fedavg"
RETRAIN = "retrain"
FINE_TUNE = "fine-tune"
REFERENCE = "reference"
ERASED = "projected-ascent"

ARMS = {
    FEDAVG: "FedAvg",
    RETRAIN: "Retrained",
    FINE_TUNE: "Fine-tuned",
    REFERENCE: "Reference",
    ERASED: "Erased",
}
NEEDED_ARMS = (FEDAVG, RETRAIN, ERASED)
POST_TRAINED_ARMS = (FINE_TUNE, REFERENCE, ERASED)

CLEAN_ACCURACY = "clean_accuracy"
ATTACK_SUCCESS = "attack_success"
BACKDOOR_ACCURACY = "backdoor_accuracy"
FLIPPED_ACCURACY = "flipped_accuracy"
HOLDOUT_ACCURACY = "holdout_accuracy"
LEAVER_ACCURACY = "leaver_accuracy"
LEAVER_LOSS = "leaver_loss"

SCORES = {
    CLEAN_ACCURACY: "clean accuracy",
    ATTACK_SUCCESS: "attack success",
    BACKDOOR_ACCURACY: "backdoor accuracy (with floor)",
    FLIPPED_ACCURACY: "flipped accuracy",
    HOLDOUT_ACCURACY: "hold-out accuracy",
    LEAVER_ACCURACY: "accuracy on the leaver's samples",
    LEAVER_LOSS: "loss on the leaver's samples",
}

# The score that answers "is the leaver forgotten?" first, by scenario.
MAIN_PROBE = {
    "backdoor": ATTACK_SUCCESS,
    "flipped": FLIPPED_ACCURACY,
    "clean": HOLDOUT_ACCURACY,
}
SCENARIOS = {
    "backdoor": "Backdoor",
    "flipped": "Flipped images",
    "clean": "Clean leaver",
}
ATTACKS = {"yeom": "Yeom", "shokri": "Shokri"}

# In the order of the paper's panels.
DATA_SETS = {
    "mnist": "MNIST",
    "mnist-10k": "MNIST, 10,000 images",
    "emnist47": "EMNIST, 47 classes",
    "emnist-balanced": "EMNIST balanced",
    "cifar10": "CIFAR-10",
    "fashion-mnist": "Fashion-MNIST",
}


def is_proportion(score: str) -> bool:
    """Tell whether a score is a share between 0 and 1; losses are not."""
    return not score.endswith("loss")


def data_label(data: str) -> str:
    """Return a data set's name for readers; a user's own file keeps its last path part."""
    return DATA_SETS.get(data, data.replace("\\", "/").rsplit("/", 1)[-1])


def data_order(data: str) -> tuple[int, str]:
    """Sort key that puts data sets in the paper's order and unknown ones last."""
    known = list(DATA_SETS)
    return (known.index(data) if data in known else len(known), data)
