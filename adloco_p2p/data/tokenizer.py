"""Text to token ids and back: by bytes, without any download, or by a tokenizer that `transformers` loads."""

import hashlib
import tempfile
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from adloco_p2p.config.hub_reach import is_hub_reachable
from adloco_p2p.config.local_files import check_source
from adloco_p2p.config.run_config import RunConfig, TokenizerConfig
from adloco_p2p.core.model import canonical
from adloco_p2p.errors import ConfigError

TokenIds = npt.NDArray[np.integer[Any]]
"""The token ids of one document: [n], any integer type that holds the vocabulary."""

MAX_RENAMED = 0.01
"""The share of ids that may stand for other tokens than in the model's own tokenizer, such as reserved ones that got a name."""
NOT_CACHED = "it is not in this machine's cache of the hub, and the hub is out of reach (--offline, or no network)"
END_OF_DOCUMENT = "<|endoftext|>"
"""The spelling of the byte tokenizer's only special token."""


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def end_of_document(self) -> int:
        """The id that follows every document and fills padding."""

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return the token ids of each text, without special tokens."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; special tokens give nothing, and bytes that are not UTF-8 a replacement character."""

    def save(self, directory: Path) -> None:
        """Write files from which `transformers.AutoTokenizer` makes a tokenizer with the same ids."""

    def fingerprint(self) -> str:
        """Return a text that names cached rows: it changes whenever the ids of a text could."""


def open_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Return the tokenizer that a run names, without ever executing remote code. Raises ConfigError where it cannot be loaded,
    or where the run states another digest."""
    if config.source == "bytes":
        return ByteTokenizer()
    tokenizer = PretrainedTokenizer(config)
    if config.digest and (found := tokenizer.digest()) != config.digest:
        raise ConfigError(
            f"tokenizer.source: {config.source!r} has digest {found} here, and the run was started with {config.digest};"
            " get the tokenizer that the run's author has",
            code="E218",
        )
    return tokenizer


def tokenizer_digest(config: TokenizerConfig) -> str:
    """Return the digest of the tokenizer that a run names; empty for bytes. Raises ConfigError."""
    return PretrainedTokenizer(config).digest() if config.source != "bytes" else ""


def check_vocabulary(run: RunConfig, tokenizer: Tokenizer) -> None:
    """Raise ConfigError where the run's tokenizer is not the one of its pretrained model and gives other meanings to the same
    ids. For a model without a tokenizer only the size of the vocabulary can be checked, which `build_model` does."""
    pretrained = run.model.pretrained
    if pretrained is None or run.tokenizer.source == pretrained or not isinstance(tokenizer, PretrainedTokenizer):
        return
    try:
        own = PretrainedTokenizer(TokenizerConfig(source=pretrained, revision=run.model.revision)).tokens()
    except ConfigError:
        return
    given = tokenizer.tokens()
    shared = own.keys() & given.keys()
    num_others = sum(own[token_id] != given[token_id] for token_id in shared)
    if num_others > MAX_RENAMED * len(shared):
        raise ConfigError(
            f"tokenizer.source: {run.tokenizer.source!r} does not belong to model.pretrained {pretrained!r}: {num_others} of"
            f" {len(shared)} ids stand for other tokens; leave tokenizer.source out to use the model's own",
            code="E208",
        )


class ByteTokenizer:
    """A tokenizer of bytes: ids 0 to 255 are the bytes of UTF-8; 256 ends a document and is also begin, end and padding.

    The vocabulary is 257, not rounded up. Rounding pays on GPUs with large vocabularies; here it would only add ids that never
    occur, to the model and to the exported tokenizer.
    """

    vocab_size = 257
    end_of_document = 256

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return uint8 arrays. A lone surrogate, which no valid text has, becomes a question mark."""
        return [np.frombuffer(text.encode(errors="replace"), dtype=np.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def save(self, directory: Path) -> None:
        # transformers takes seconds to import, and the embedded default trains without it
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as TokenizerPipeline
        from transformers import PreTrainedTokenizerFast

        pipeline = TokenizerPipeline(models.BPE(vocab={symbol: i for i, symbol in enumerate(_byte_symbols())}, merges=[]))
        pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        pipeline.decoder = decoders.ByteLevel()
        pipeline.add_special_tokens([AddedToken(END_OF_DOCUMENT, special=True)])
        PreTrainedTokenizerFast(
            tokenizer_object=pipeline,
            bos_token=END_OF_DOCUMENT,
            eos_token=END_OF_DOCUMENT,
            pad_token=END_OF_DOCUMENT,
            clean_up_tokenization_spaces=False,
        ).save_pretrained(directory)

    def fingerprint(self) -> str:
        return "bytes"


def _byte_symbols() -> list[str]:
    """Return the printable characters by which byte-level tokenizers write the bytes, as GPT-2 defined them: a printable byte
    stands for itself, the n-th of the others is chr(256 + n)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(256 + n) for n in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


class PretrainedTokenizer:
    """A tokenizer from the hub or from a local directory."""

    def __init__(self, config: TokenizerConfig) -> None:
        from transformers import AutoTokenizer  # takes seconds to import, and only some runs need it

        revision = config.revision or "main"
        check_source("tokenizer.source", config.source, code="E208")
        is_asked = is_hub_reachable()
        try:
            with _panics_named(config.source):
                self._inner: Any = AutoTokenizer.from_pretrained(
                    config.source,
                    revision=revision,
                    trust_remote_code=False,
                    local_files_only=not is_asked,
                )
        except ConfigError:
            raise
        except Exception as error:  # other people's files, which may hold anything
            is_here = Path(config.source).is_dir()
            where = "" if is_here else f"no directory of that name is here; revision {revision!r} of the hub: "
            why = _first_line(error) if is_here or is_asked else NOT_CACHED
            raise ConfigError(
                f"tokenizer.source, or model.pretrained where that is left out: {config.source!r} cannot be loaded: {where}"
                f"{why}; name a local folder with tokenizer.json, or a hub tokenizer that can be reached; for a model that"
                " begins from random weights tokenizer.source=bytes tokenizer.revision=null needs no download",
                code="E208",
            ) from error
        if not getattr(self._inner, "is_fast", False):
            raise ConfigError(
                f"tokenizer.source: {config.source!r} is a tokenizer of the kind {type(self._inner).__name__}, which has no"
                " tokenizer.json; name one that has",
                code="E208",
            )
        ends = (self._inner.eos_token_id, self._inner.sep_token_id)
        end_of_document = next((end for end in ends if end is not None), None)
        if end_of_document is None:
            raise ConfigError(
                f"tokenizer.source: {config.source!r} has no end-of-text token; name one with an eos or sep token",
                code="E208",
            )
        self._source = config.source
        self.end_of_document: int = end_of_document
        # ids need not be without gaps: the largest one counts
        self.vocab_size: int = max(len(self._inner), 1 + max(self._inner.get_vocab().values(), default=0))

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Return int32 arrays. Raises ConfigError for a text on which the tokenizer fails."""
        with _panics_named(self._source):
            encoded = self._inner(
                [text.encode(errors="replace").decode() for text in texts],  # a lone surrogate is in no vocabulary
                add_special_tokens=False,
                split_special_tokens=True,  # a text that merely spells a special token, as <|endoftext|>, must not become it
                return_attention_mask=False,
                verbose=False,  # documents are longer than the model's context on purpose, and are cut into rows afterwards
            )
        return [np.asarray(document, dtype=np.int32) for document in encoded["input_ids"]]

    def encode_control(self, text: str) -> TokenIds:
        """Return the ids, int32, of text that a chat template wrote, in which control tokens are meant."""
        return self.encode_rendered(text)[0]

    def encode_rendered(self, text: str) -> tuple[TokenIds, npt.NDArray[np.int64]]:
        """Return the ids, int32 [n], of text in which control tokens are meant, and from where to where each of them lies in
        the text, in characters [n, 2]; see `_places`."""
        with _panics_named(self._source):
            encoded = self._inner(
                [text.encode(errors="replace").decode()],  # as in `encode`; the number of characters stays
                add_special_tokens=False,
                return_offsets_mapping=True,
                return_attention_mask=False,
                verbose=False,
            )
        ids = encoded["input_ids"][0]
        places = _places(text, ids, encoded["offset_mapping"][0], control=frozenset(self.control_tokens.values()))
        return np.asarray(ids, dtype=np.int32), np.asarray(places, dtype=np.int64).reshape(-1, 2)

    @property
    def chat_template(self) -> str | None:
        """How the model's authors write conversations; None for models that were not made for them."""
        template = self._inner.chat_template
        return template if isinstance(template, str) else None

    @property
    def special_tokens(self) -> dict[str, Any]:
        """The special tokens by the names that chat templates use, such as `eos_token`."""
        return dict(self._inner.special_tokens_map)

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """All tokens that no text can spell, the longest first, with their ids."""
        added = self._inner.added_tokens_decoder.items()
        ids = {token.content: token_id for token_id, token in added if token.special}
        return dict(sorted(ids.items(), key=lambda item: len(item[0]), reverse=True))

    @property
    def unknown(self) -> int | None:
        """The control token for what is in no vocabulary, if there is one."""
        found: int | None = self._inner.unk_token_id
        return found

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def tokens(self) -> dict[int, str]:
        """Return every token by its id."""
        return {token_id: token for token, token_id in self._inner.get_vocab().items()}

    def digest(self) -> str:
        """Return the digest of all that decides the token ids of texts and conversations; other parts of the files do not
        count."""
        parts = [self._inner.backend_tokenizer.to_str(), self.chat_template or "", str(self.end_of_document)]
        return hashlib.sha256(canonical.encode(parts)).hexdigest()

    def save(self, directory: Path) -> None:
        self._inner.save_pretrained(directory)

    def fingerprint(self) -> str:
        hasher = hashlib.sha256()
        with tempfile.TemporaryDirectory() as directory:
            self.save(Path(directory))
            for path in sorted(Path(directory).iterdir()):
                hasher.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return hasher.hexdigest()


def _places(
    text: str, ids: Sequence[int], offsets: Sequence[tuple[int, int]], *, control: Container[int]
) -> list[tuple[int, int]]:
    """Return from where to where each token lies in the text, by the offsets that a tokenizer reports.

    It reports an empty stretch for white space that it trims, which is what no token before covers, and for a mark that it puts
    before a text, which belongs to the next character. White space that a control token takes in does not count.
    """
    places, covered = [], 0
    for token, (start, stop) in zip(ids, offsets, strict=True):
        first, last = start, stop
        if token in control:
            found = text[start:stop]
            first, last = stop - len(found.lstrip()), start + len(found.rstrip())
        elif start == stop:
            first, last = (covered, stop) if covered < start else (start, min(start + 1, len(text)))
        places.append((first, last))
        covered = max(covered, stop)
    return places


@contextmanager
def _panics_named(source: str) -> Iterator[None]:
    """Turn a panic of the tokenizer into an error that names `source`: an error that its Rust code did not foresee, such as of
    a pattern that takes too many steps on a text, is no Exception and would end the thread that reads."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise ConfigError(
            f"tokenizer.source: {source!r} fails: {str(error)[:200]}; name another tokenizer", code="E208"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
