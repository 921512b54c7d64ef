"""`ChatTemplate`: a model's own prompt format, rendered in a sandbox.

Templates come with the model and are untrusted: they see plain data only and cannot reach Python's internals. The
environment (trimming, `tojson`, `raise_exception`, `strftime_now`, loop controls) is the one that templates on the
Hugging Face hub are written for.
"""

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseboard.core.errors import LoadError, RequestError
from fuseboard.load.config import read_json
from fuseboard.load.tokenizer import token_text

if TYPE_CHECKING:
    import jinja2

DEFAULT_NAME = "default"
TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """One template; `tokens` gives the special tokens it may name, such as `bos_token`, when it is first rendered."""

    def __init__(self, source: str, tokens: Callable[[], Mapping[str, str]] = dict) -> None:
        self.source, self._read_tokens = source, tokens

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for `messages` (role and content each), to be encoded with `parse_special` and without added
        special tokens. `kwargs` reach the template. Raises `RequestError` when the template refuses the messages.
        """
        import jinja2

        values = {**self._tokens, **kwargs, "messages": plain(messages), "tools": plain(tools)}
        try:
            return self._template.render(add_generation_prompt=add_generation_prompt, **values)
        except jinja2.TemplateError as error:
            raise RequestError(f"The model's chat template does not accept these messages: {error}.") from error
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            raise RequestError(f"The model's chat template fails on these messages ({error}).") from error

    @functools.cached_property
    def _tokens(self) -> Mapping[str, str]:
        return self._read_tokens()

    @functools.cached_property
    def _template(self) -> "jinja2.Template":
        import jinja2

        try:
            return chat_environment().from_string(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise LoadError(f"The model's chat template is not valid: {error} (line {error.lineno}).") from error


def plain(value: Any) -> Any:
    """A copy made of JSON types only, so that a template meets no other object."""
    return json.loads(json.dumps(value))


@functools.cache
def chat_environment() -> "jinja2.Environment":
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def folder_template(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """The folder's template: `chat_template.jinja`, `chat_template.json`, or in `tokenizer_config.json`."""
    named = {key: text for key in TOKEN_KEYS if (text := token_text(config.get(key)))}
    tokens: Callable[[], Mapping[str, str]] = functools.partial(dict, named)
    if (path := folder / "chat_template.jinja").is_file():
        return ChatTemplate(path.read_text(encoding="utf-8"), tokens)
    template = config.get("chat_template")
    if (path := folder / "chat_template.json").is_file():
        template = read_json(path).get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get(DEFAULT_NAME)
    return ChatTemplate(template, tokens) if template else None


def gguf_template(metadata: Mapping[str, Any]) -> ChatTemplate | None:
    """The template in a GGUF file's metadata."""
    template = metadata.get("tokenizer.chat_template")
    return ChatTemplate(template, functools.partial(gguf_tokens, metadata)) if template else None


def gguf_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a GGUF file names, by the names that templates use."""
    ids = {key: metadata.get(f"tokenizer.ggml.{key.removesuffix('_token')}_token_id") for key in TOKEN_KEYS}
    texts = metadata["tokenizer.ggml.tokens"].pick([number for number in ids.values() if number is not None])
    return {key: texts[number] for key, number in ids.items() if number in texts}
