"""Chat templates: the environment that templates expect, the sandbox, and where templates are found."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers.utils.chat_template_utils as reference

from fuseboard.core.errors import LoadError, RequestError
from fuseboard.load.chat import ChatTemplate, folder_template

from .conftest import real_model

MESSAGES = [
    {"role": "system", "content": 'Be <brief> & "exact".'},
    {"role": "user", "content": "1 < 2?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "é 你好"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}]


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_real_templates_agree_with_transformers(name: str, tools: Any) -> None:
    template = real_model(name).chat_template
    assert template is not None
    for prompt in (True, False):
        theirs, _ = reference.render_jinja_template(
            conversations=[MESSAGES], tools=tools, chat_template=template.source, add_generation_prompt=prompt
        )
        assert template.render(MESSAGES, add_generation_prompt=prompt, tools=tools) == theirs[0]


@pytest.mark.models
def test_base_model_has_no_template() -> None:
    with pytest.raises(LoadError, match="'gemma3-270m' has no chat template"):
        real_model("gemma3-270m").chat_prompt(MESSAGES)


def test_whitespace_and_filters_are_those_of_the_hub() -> None:
    source = "{% for m in messages %}\n    {% if loop.last %}{% continue %}{% endif %}\n{{ m | tojson }};\n{% endfor %}"
    assert ChatTemplate(source).render(MESSAGES[:2]) == json.dumps(MESSAGES[0]) + ";\n"


def test_arguments_and_special_tokens_reach_the_template() -> None:
    source = "{{ bos_token }}{{ think }}{{ add_generation_prompt }}{{ tools }}{{ strftime_now('%Y') | length }}"
    template = ChatTemplate(source, lambda: {"bos_token": "<s>"})
    assert template.render([], add_generation_prompt=False, think="on") == "<s>onFalseNone4"


def test_refusals_of_a_template_are_the_users_errors() -> None:
    refusing = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        refusing.render(MESSAGES)
    with pytest.raises(RequestError, match="fails on these messages"):
        ChatTemplate("{{ 'a' + messages }}").render([])
    with pytest.raises(LoadError, match=r"not valid: .*line 1"):
        ChatTemplate("{% if %}").render([])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(RequestError):
        ChatTemplate(source).render(MESSAGES)


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert folder_template(tmp_path, {}) is None
    listed = {
        "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}]
    }
    found = folder_template(tmp_path, listed | {"eos_token": {"content": "</s>"}})
    assert found is not None
    assert found.render([]) == "d</s>"
    for name, content, rendered in (
        ("chat_template.json", json.dumps({"chat_template": "json"}), "json"),
        ("chat_template.jinja", "jinja", "jinja"),
    ):
        (tmp_path / name).write_text(content)
        found = folder_template(tmp_path, {"chat_template": "inline"})
        assert found is not None
        assert found.render([]) == rendered
