"""Other trainers' names of keys, so that a person who types one learns our key.

It may import nothing of the package. It must not know which keys exist; a test looks each of these up.
"""

from __future__ import annotations

KEYS = {
    "base_model": "model",
    "beta": "rl.loss.kl_coef",
    "clip_ratio": "rl.loss.clip_high",
    "config": "+recipe",
    "data_path": "data",
    "dataset": "data",
    "dataset_name": "data",
    "eval_steps": "rl.validate.every",
    "gpu_memory_utilization": "engine.gpu_memory",
    "logger": "tracker",
    "lora_r": "rl.optim.lora.rank",
    "max_completion_length": "agent.limits.max_turn_tokens",
    "max_length": "agent.limits.max_tokens",
    "max_new_tokens": "agent.limits.max_turn_tokens",
    "max_seq_length": "agent.limits.max_tokens",
    "max_steps": "rl.steps_per_phase",
    "model_name": "model",
    "model_name_or_path": "model",
    "model_path": "model",
    "num_generations": "rl.group_size",
    "num_train_epochs": "sft.epochs",
    "output_dir": "name",
    "recipe": "+recipe",
    "report_to": "tracker",
    "run_name": "name",
    "save_steps": "rl.checkpoint_every",
    "tensor_parallel_size": "engine.tensor_parallel",
    "train_file": "data",
}
LEARNING = {
    "batch_size": {"rl": "rl.prompts_per_step", "sft": "sft.rows_per_step"},
    "learning_rate": {"rl": "rl.optim.lr", "sft": "sft.optim.lr"},
    "per_device_train_batch_size": {"rl": "rl.prompts_per_step", "sft": "sft.rows_per_step"},
}
"""Names with a key in the stage that learns."""

FOUR_BITS = (
    "a 4-bit base (QLoRA) is not trained here. The engine samples from merged 16-bit weights, which the card must hold "
    "in any case, and DeepSpeed over 4-bit weights is untested. scale=small trains adapters of a 3B model on 24 GB."
)
REFUSED: dict[str, str] = dict.fromkeys(
    ("load_in_4bit", "load_in_8bit", "qlora", "quantization_bit", "optim.lora.base"), FOUR_BITS
)
"""Names of what vtcli does not do, with the reason."""


def refusal(name: str) -> str | None:
    """The reason against a key of another trainer; None for others.

    >>> refusal("rl.optim.lora.base") == FOUR_BITS, refusal("rl.optim.lora.rank")
    (True, None)
    """
    word = name.lstrip("-+").replace("-", "_")
    return REFUSED.get(word) or REFUSED.get(word.partition(".")[2])


def key_of(name: str, stage: str) -> str | None:
    """Returns the key for another trainer's name, also spelt as an option (``--learning-rate``), or None.

    >>> key_of("--learning-rate", "sft"), key_of("model_name", "eval"), key_of("rl.group_size", "rl")
    ('sft.optim.lr', 'model', None)
    """
    word = name.lstrip("-+").replace("-", "_")
    return KEYS.get(word) or LEARNING.get(word, {}).get(stage)
