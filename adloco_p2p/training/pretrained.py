"""The weights that a run starts from: where they lie, their digest, and how they are loaded.

A hub id or a directory names them. A digest identifies them: it covers every tensor's name, type, shape and bytes, and the
model's configuration, but not how files divide the tensors.
"""

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, constants, try_to_load_from_cache
from safetensors import safe_open
from transformers.utils import cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from adloco_p2p.config.download_size import check_download
from adloco_p2p.config.hub_reach import is_hub_reachable
from adloco_p2p.config.local_files import check_source
from adloco_p2p.config.run_config import ModelConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.core.model.scalars import Digest
from adloco_p2p.errors import ConfigError, brief
from adloco_p2p.training.device import memory_bytes
from adloco_p2p.training.model_size import check_size

_READ_BYTES = 1 << 22
_NOT_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")
"""Entries of config.json about how the model was saved."""


def load_pretrained(model: ModelConfig) -> transformers.PreTrainedModel:
    """Return the model that `model.pretrained` names, on the CPU, in fp32, or as the base of adapters in
    `model.lora.base_precision`. Loads only safetensors, which cannot carry code.

    Raises ConfigError where it cannot be loaded, or where the run states another digest.
    """
    assert model.pretrained is not None
    check_source("model.pretrained", model.pretrained, code="E209")
    _check_size(model.pretrained, model.revision or "main")
    if model.digest and (found := weights_digest(model)) != model.digest:
        raise ConfigError(
            f"model.pretrained: {model.pretrained!r} has digest {found} here, and the run was started with {model.digest};"
            " get the weights that the run's author has",
            code="E218",
        )
    _checked_files(model)
    config = _config_of(model)
    config._attn_implementation = _attention(config)  # in place of whatever the file says
    transformers.utils.logging.disable_progress_bar()
    dtype = torch.bfloat16 if model.lora.rank and model.lora.base_precision == "bfloat16" else torch.float32
    try:
        check_size(config, memory_bytes(), setting="model.pretrained", purpose="loaded", bytes_each=dtype.itemsize)
        loaded: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
            model.pretrained,
            config=config,
            revision=model.revision or "main",
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=not is_hub_reachable(),
            attn_implementation=_attention(config),
        )
    except ConfigError:
        raise
    except Exception as error:  # torch and transformers refuse impossible sizes with various errors
        raise _cannot_be_loaded(model, error) from error
    return loaded


def stored_dtype(model: ModelConfig) -> torch.dtype:
    """Return the type of the pretrained weights as stored; float32 where there are none."""
    if model.pretrained is None:
        return torch.float32
    dtype = _config_of(model).dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _config_of(model: ModelConfig) -> Any:
    """Return the configuration of the pretrained model, of any class of transformers. Raises ConfigError."""
    try:
        return transformers.AutoConfig.from_pretrained(
            model.pretrained,
            revision=model.revision or "main",
            trust_remote_code=False,
            local_files_only=not is_hub_reachable(),
        )
    except Exception as error:  # other people's file: each class of transformers has its own ways to refuse one
        raise _cannot_be_loaded(model, error) from error


def _attention(config: Any) -> str:
    """Return torch's own attention, or the plain form where the architecture cannot use it (Gemma 2, gpt-oss). The repository's
    own choice could name a kernel to download."""
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return "eager" if kind is not None and not kind._supports_sdpa else "sdpa"


def weights_digest(model: ModelConfig) -> Digest:
    """Return the digest of the weights that `model.pretrained` names. Raises ConfigError."""
    assert model.pretrained is not None
    check_source("model.pretrained", model.pretrained, code="E209")
    _check_size(model.pretrained, model.revision or "main")
    files = _checked_files(model)
    try:
        config = json.loads(Path(_file(model.pretrained, "config.json", model.revision or "main")).read_text("utf-8"))
        tensors = sorted(tensor for file in files for tensor in _tensors(Path(file)))
        described = {name: value for name, value in config.items() if name not in _NOT_THE_MODEL}
        return canonical.digest([_plain(described), [list(tensor) for tensor in tensors]])
    except Exception as error:  # other people's files, which may hold anything
        raise _cannot_be_loaded(model, error) from error


def _checked_files(model: ModelConfig) -> list[str]:
    """Return the checkpoint's safetensors files; nothing else is loaded. Raises ConfigError."""
    assert model.pretrained is not None
    try:
        return _weight_files(model.pretrained, model.revision or "main")
    except Exception as error:  # other people's files, which may hold anything
        raise _cannot_be_loaded(model, error) from error


def _check_size(source: str, revision: str) -> None:
    """Raise ConfigError where the disk has no room for the weights that the hub has and this machine lacks. There is no
    estimate where the hub does not answer: the download then reports why, or finds the files in the cache."""
    if Path(source).is_dir() or not is_hub_reachable():
        return
    try:
        asked = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(source, revision=revision, files_metadata=True)
    except Exception:  # whatever the hub's HTTP library raises
        return
    sizes = {file.rfilename: file.size or 0 for file in asked.siblings or () if file.rfilename.endswith(".safetensors")}
    names = ["model.safetensors"] if "model.safetensors" in sizes else [name for name in sizes if name.startswith("model-")]
    missing = [name for name in names if not isinstance(try_to_load_from_cache(source, name, revision=revision), str)]
    num_bytes = sum(sizes[name] for name in missing)
    directory = Path(constants.HF_HUB_CACHE)
    check_download("model.pretrained", source, num_bytes, directory, code="E217", memory_bytes=memory_bytes())


def _file(source: str, name: str, revision: str) -> str:
    return str(cached_file(source, name, revision=revision, local_files_only=not is_hub_reachable()))


def _weight_files(source: str, revision: str) -> list[str]:
    """Return every safetensors file of the checkpoint, downloaded where needed. Raises OSError where there is none, and
    ValueError where other files would be loaded."""
    is_offline = not is_hub_reachable()
    adapters = cached_file(
        source,
        "adapter_config.json",
        revision=revision,
        local_files_only=is_offline,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if adapters is not None:  # peft would load them, and the base from wherever they name it
        raise ValueError("it holds adapters (adapter_config.json), which no digest covers; name a merged model")
    single = cached_file(
        source,
        "model.safetensors",
        revision=revision,
        local_files_only=is_offline,
        _raise_exceptions_for_missing_entries=False,
    )
    if single is not None:
        return [str(single)]
    index = _file(source, "model.safetensors.index.json", revision)
    names = json.loads(Path(index).read_text("utf-8"))["weight_map"].values()
    if not all(Path(name).name == name for name in names):
        raise ValueError("model.safetensors.index.json names files outside of the model")
    files, _ = get_checkpoint_shard_files(source, index, revision=revision, local_files_only=is_offline)
    return list(files)


def _tensors(path: Path) -> list[tuple[str, str, str, str]]:
    """Return name, type, shape and SHA-256 of every tensor of a safetensors file. Raises SafetensorError where the file is not
    one, or where tensors overlap: a million of them could share the bytes that are read for each."""
    with safe_open(path, framework="pt"):
        pass
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        found = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, stop = entry["data_offsets"]
            file.seek(8 + length + start)
            hasher, left = hashlib.sha256(), stop - start
            while left > 0 and (data := file.read(min(left, _READ_BYTES))):
                hasher.update(data)
                left -= len(data)
            found.append((name, str(entry["dtype"]), str(entry["shape"]), hasher.hexdigest()))
    return found


def _plain(value: Any) -> Any:
    """Return the value as JSON, with text for numbers that have no canonical form."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


def _cannot_be_loaded(model: ModelConfig, error: Exception) -> ConfigError:
    reason = brief(error)
    return ConfigError(f"model.pretrained: {model.pretrained!r} cannot be loaded: {reason}", code="E209")
