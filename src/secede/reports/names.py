"""Names of arms, scores, scenarios and data sets, in the records and for readers."""

from __future__ import annotations

from secede.unlearning import METHODS, base_name

FEDAVG = "fedavg"
RETRAIN = "retrain"
RETRAIN_AGAIN = "retrain-again"  # the same data, other randomness: the null
FINE_TUNE = "fine-tune"
REFERENCE = "reference"
PROJECTED_ASCENT = "projected-ascent"
ERASED = "erased"  # stands for the method that a run judges

# Other arms are shown by their own name in words.
_LABELS = {
    FEDAVG: "FedAvg",
    RETRAIN: "Retrained",
    RETRAIN_AGAIN: "Retrained again",
    FINE_TUNE: "Fine-tuned",
    REFERENCE: "Reference",
    ERASED: "Erased",
}

_PROPER = {"federaser": "FedEraser"}

CLEAN_ACCURACY = "clean_accuracy"
ATTACK_SUCCESS = "attack_success"
BACKDOOR_ACCURACY = "backdoor_accuracy"
FLIPPED_ACCURACY = "flipped_accuracy"
HOLDOUT_ACCURACY = "holdout_accuracy"
EXCLUSIVE_ACCURACY = "exclusive_accuracy"
CLASS_ACCURACY = "class_accuracy"
OTHERS_ACCURACY = "others_accuracy"
LEAVER_ACCURACY = "leaver_accuracy"
RETAINED_ACCURACY = "retained_accuracy"
LEAVER_LOSS = "leaver_loss"
CANARY_RANK = "canary_rank"

SCORES = {
    CLEAN_ACCURACY: "clean accuracy",
    ATTACK_SUCCESS: "attack success",
    BACKDOOR_ACCURACY: "backdoor accuracy (with floor)",
    FLIPPED_ACCURACY: "flipped accuracy",
    HOLDOUT_ACCURACY: "hold-out accuracy",
    EXCLUSIVE_ACCURACY: "accuracy on the leaver's classes",
    CLASS_ACCURACY: "accuracy on the classes to erase",
    OTHERS_ACCURACY: "accuracy on the other classes",
    LEAVER_ACCURACY: "accuracy on the leaver's samples",
    RETAINED_ACCURACY: "accuracy on the retained clients' samples",
    LEAVER_LOSS: "loss on the leaver's samples",
    CANARY_RANK: "mean rank of canaries",
}

# The score that answers "is the leaver forgotten?" first, by scenario.
MAIN_PROBE = {
    "backdoor": ATTACK_SUCCESS,
    "flipped": FLIPPED_ACCURACY,
    "clean": HOLDOUT_ACCURACY,
    "exclusive": EXCLUSIVE_ACCURACY,
    "class": CLASS_ACCURACY,
}
# The score that measures usefulness, where it is not clean accuracy: a model that forgot classes
# of the test set should no longer be right on them.
UTILITY = {"exclusive": OTHERS_ACCURACY, "class": OTHERS_ACCURACY}
SCENARIOS = {
    "backdoor": "Backdoor",
    "flipped": "Flipped images",
    "clean": "Clean leaver",
    "exclusive": "Exclusive classes",
    "class": "Whole classes",
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


def label(arm: str) -> str:
    """Return an arm's name for readers; a user's own class keeps its whole name."""
    words = method_words(arm)
    return _LABELS.get(arm) or (arm if ":" in arm else words[:1].upper() + words[1:])


def method_words(method: str) -> str:
    """Return a method's name inside a sentence: "projected ascent", "second choice (free)"."""
    name, _, variant = method.partition("@")
    words = name if ":" in name else _PROPER.get(name) or name.replace("-", " ")
    return f"{words} ({variant.replace('-', ' ')})" if variant else words


def method_needs(method: str) -> str:
    """Return what a method needs, in the words of the table of methods."""
    if base_name(method) not in METHODS:
        return "as its class says"
    return ", ".join(METHODS[base_name(method)].needs.words()) or "nothing"


def method_line(method: str) -> str:
    """Return a method's name with its summary and source from the table of methods."""
    if base_name(method) not in METHODS:
        return f"{method_words(method)}, a method of your own"
    entry = METHODS[base_name(method)]
    return f"{method_words(method)}: {entry.summary} ({entry.source})"


def is_proportion(score: str) -> bool:
    """Return whether a score is a share between 0 and 1; losses and ranks are not."""
    return not score.endswith(("loss", "rank"))


def data_label(data: str) -> str:
    """Return a data set's name for readers; a user's own file keeps its last path part."""
    return DATA_SETS.get(data, data.replace("\\", "/").rsplit("/", 1)[-1])


def data_order(data: str) -> tuple[int, str]:
    """Sort key that puts data sets in the paper's order and unknown ones last."""
    order = list(DATA_SETS)
    return (order.index(data) if data in order else len(order), data)
