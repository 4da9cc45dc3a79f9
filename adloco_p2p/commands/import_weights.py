"""The verb that makes a model directory from a state dict, for `model.pretrained`."""

import argparse
import shlex
from dataclasses import replace

from adloco_p2p.commands.console import say, say_json
from adloco_p2p.config.load import load_run
from adloco_p2p.config.run_config import LoraConfig
from adloco_p2p.errors import ConfigError
from adloco_p2p.storage.disk import filling, share_mode
from adloco_p2p.storage.workdir import check_output


def import_weights(arguments: argparse.Namespace) -> int:
    """Write the weights of a file as a `transformers` model, with the architecture and tokenizer of a configuration."""
    if not arguments.weights.is_file():
        raise ConfigError(f"--weights {arguments.weights}: no such file", code="E200")
    check_output(arguments.output)
    run = load_run(arguments.config, arguments.set).value
    from adloco_p2p.data.tokenizer import open_tokenizer
    from adloco_p2p.training.model import build_model
    from adloco_p2p.training.state_dict import common_dtype, load_state_dict_, read_state_dict

    given = read_state_dict(arguments.weights)
    tokenizer = open_tokenizer(run.tokenizer)
    model = build_model(
        replace(run.model, lora=LoraConfig()),
        vocab_size=tokenizer.vocab_size,
        sequence_length=run.data.sequence_length,
        seed=run.seed,
    )
    load_state_dict_(model, given, source=str(arguments.weights))
    with filling(arguments.output):
        model.to(common_dtype(given)).save_pretrained(arguments.output)
        share_mode(arguments.output)
        tokenizer.save(arguments.output)
    num_values = sum(parameter.numel() for parameter in model.parameters())
    if arguments.json:
        say_json({"output": str(arguments.output), "parameters": num_values})
    else:
        setting = shlex.quote(f"model.pretrained={arguments.output}")
        say(f"{arguments.output}: {num_values:,} parameters; start from them: --set {setting}")
    return 0
