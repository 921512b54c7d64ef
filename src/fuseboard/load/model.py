"""`load_model`: from a model's name to its specification, weights, tokenizer and chat template."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuseboard.core.errors import LoadError
from fuseboard.core.weights import WeightSource
from fuseboard.load.chat import ChatTemplate, folder_template, gguf_template
from fuseboard.load.checkpoint import open_gguf, open_safetensors
from fuseboard.load.config import gguf_family, gguf_spec, read_json
from fuseboard.load.dummy import DummyWeights, byte_tokenizer
from fuseboard.load.gguf_file import GgufFile
from fuseboard.load.resolve import resolve_model
from fuseboard.load.safetensors_file import SafetensorsFiles
from fuseboard.load.tokenizer import Tokenizer, folder_tokenizer, gguf_tokenizer
from fuseboard.models.registry import family_of_config
from fuseboard.models.spec import ModelSpec

SAMPLING_KEYS = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")
LOAD_FORMATS = ("auto", "dummy")


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model, checked and ready to plan; its weights are mapped and not yet read.

    `generation_defaults` are the sampling settings of `generation_config.json` under its names. `path` is the file or
    folder that `name` stands for and `digest` identifies the weights' contents.
    """

    name: str
    path: Path
    spec: ModelSpec
    weights: WeightSource
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return self.weights.digest

    @property
    def eos_ids(self) -> frozenset[int]:
        """End tokens named by the generation configuration, the configuration and the tokenizer together."""
        return self.tokenizer.eos_ids

    def chat_prompt(self, messages: Iterable[Mapping[str, Any]], **kwargs: Any) -> str:
        """The rendered chat template; `LoadError` when the model has none."""
        if self.chat_template is None:
            raise LoadError(f"The model '{self.name}' has no chat template; give a plain prompt instead.")
        return self.chat_template.render(list(messages), **kwargs)


def load_model(
    name: str, *, revision: str | None = None, load_format: str = "auto", need_tokenizer: bool = True
) -> LoadedModel:
    """Loads a path, a hub id or a catalogue model.

    `load_format="dummy"` takes only the `config.json` (a folder with one, or the file) and makes up the weights.
    Without `need_tokenizer` a folder that has no tokenizer gets one that maps bytes, as a dummy model does. Raises
    `LoadError` naming whatever is missing, extra, damaged or not understood.
    """
    if load_format not in LOAD_FORMATS:
        raise LoadError(f"The load format '{load_format}' is unknown; known are {', '.join(LOAD_FORMATS)}.")
    path = resolve_model(name, revision=revision)
    if load_format == "dummy":
        return load_dummy(name, path)
    if path.is_file():
        return load_gguf(name, path)
    if not (path / "config.json").is_file() and len(files := sorted(path.glob("*.gguf"))) == 1:
        return load_gguf(name, files[0])
    return load_folder(name, path, need_tokenizer)


def load_gguf(name: str, path: Path) -> LoadedModel:
    if path.suffix == ".json":
        raise LoadError(f"{path} is a configuration without weights; give its folder, or --load-format dummy.")
    file = GgufFile(path)
    family = gguf_family(file)
    spec = gguf_spec(file, family)
    weights = open_gguf(file, family, spec)
    return LoadedModel(
        name=name,
        path=path,
        spec=spec,
        weights=weights,
        tokenizer=gguf_tokenizer(file, weights.digest),
        chat_template=gguf_template(file.metadata),
    )


def load_folder(name: str, folder: Path, need_tokenizer: bool) -> LoadedModel:
    config = folder_config(folder)
    family = family_of_config(config)
    spec = family.spec_from_config(config)
    weights = open_safetensors(SafetensorsFiles(folder), family, spec, folder / "config.json")
    text = text_side(folder, config, spec, need_tokenizer)
    return LoadedModel(name=name, path=folder, spec=spec, weights=weights, **text)


def load_dummy(name: str, path: Path) -> LoadedModel:
    folder = path if path.is_dir() else path.parent
    config = folder_config(folder) if path.is_dir() else read_json(path)
    spec = family_of_config(config).spec_from_config(config)
    weights = DummyWeights(spec, config)
    return LoadedModel(name=name, path=path, spec=spec, weights=weights, **text_side(folder, config, spec, False))


def folder_config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} has no config.json, so it is not a model folder.")
    return read_json(folder / "config.json")


def text_side(folder: Path, config: Mapping[str, Any], spec: ModelSpec, need_tokenizer: bool) -> dict[str, Any]:
    """Tokenizer, chat template and sampling defaults from the folder's other files."""
    generation = optional_json(folder / "generation_config.json")
    names = optional_json(folder / "tokenizer_config.json")
    ends = [*end_ids(generation), *end_ids(config), *end_ids(config.get("text_config") or {})]
    if need_tokenizer or (folder / "tokenizer.json").is_file():
        tokenizer = folder_tokenizer(folder, names, ends)
    else:
        tokenizer = byte_tokenizer(spec.vocab_size, ends)
    return {
        "tokenizer": tokenizer,
        "chat_template": folder_template(folder, names),
        "generation_defaults": {key: generation[key] for key in SAMPLING_KEYS if key in generation},
    }


def optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def end_ids(config: Mapping[str, Any]) -> list[int]:
    """The configuration's `eos_token_id`: one, several or none."""
    value = config.get("eos_token_id")
    return [] if value is None else list(value) if isinstance(value, list) else [value]
