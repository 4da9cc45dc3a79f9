"""Prompts for `evaluate --tasks --chat`: as the tokenizer would write them, in a child process with limits."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from adloco_p2p.commands.evaluation import _prompts
from adloco_p2p.data import template_process
from adloco_p2p.data.prompt_template import PromptTemplate
from adloco_p2p.errors import ConfigError
from adloco_p2p.training.task_scores import _with_prompts_by

PLAIN = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}" + PLAIN
ASKED = [{"role": "user", "content": "How far?"}]
BEGUN = [*ASKED, {"role": "assistant", "content": "So far"}]


@pytest.fixture
def made() -> Iterator[list[PromptTemplate]]:
    prompts: list[PromptTemplate] = []
    yield prompts
    for each in prompts:
        each.close()


def prompts_by(template: str, made: list[PromptTemplate]) -> PromptTemplate:
    made.append(PromptTemplate(template, special_tokens={"eos_token": "</s>"}, setting="--chat"))
    return made[-1]


@pytest.mark.parametrize("template", [PLAIN, {"default": PLAIN, "tool_use": NO_SYSTEM}])
def test_of_several_templates_the_default_one_writes(template: object, made: list[PromptTemplate]) -> None:
    tokenizer: Any = SimpleNamespace(chat_template=template, special_tokens_map={"eos_token": "</s>"})
    made.append(_prompts(tokenizer))
    assert made[-1].write(ASKED, is_begun=False) == "<user>How far?</s><assistant>"


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (None, "has no chat template; leave it out"),
        ({"tool_use": PLAIN, "rag": PLAIN}, "has several chat templates (rag, tool_use), and none is `default`; leave it out"),
    ],
)
def test_a_tokenizer_without_a_template_to_take_is_refused(template: object, found: str) -> None:
    tokenizer: Any = SimpleNamespace(chat_template=template, special_tokens_map={})
    with pytest.raises(ConfigError, match=re.escape(f"--chat: the tokenizer of this run {found}")):
        _prompts(tokenizer)


def test_a_prompt_ends_where_the_answer_begins_or_goes_on(made: list[PromptTemplate]) -> None:
    prompts = prompts_by(PLAIN, made)
    assert prompts.write(ASKED, is_begun=False) == "<user>How far?</s><assistant>"
    assert prompts.write(BEGUN, is_begun=True) == "<user>How far?</s><assistant>So far"
    for messages, is_begun in ((ASKED, False), (BEGUN, True)):
        form = {"add_generation_prompt": not is_begun, "continue_final_message": is_begun}
        (by_transformers,), _ = render_jinja_template([messages], chat_template=PLAIN, eos_token="</s>", **form)
        assert prompts.write(messages, is_begun=is_begun) == by_transformers


def test_a_template_that_refuses_system_messages_gets_none(made: list[PromptTemplate]) -> None:
    told = [{"role": "system", "content": "Be brief."}, *ASKED]
    assert prompts_by(NO_SYSTEM, made).write(told, is_begun=False) == "<user>How far?</s><assistant>"
    with pytest.raises(ConfigError, match="--chat: the model's chat template refuses a conversation of user"):
        prompts_by("{{ raise_exception('none at all') }}", made).write(ASKED, is_begun=False)


def test_a_template_without_end_is_ended(monkeypatch: pytest.MonkeyPatch, made: list[PromptTemplate]) -> None:
    monkeypatch.setattr(template_process, "FIRST_SECONDS", 1.0)
    bomb = "{% for a in range(10**5) %}{% for b in range(10**5) %}{% endfor %}{% endfor %}"
    with pytest.raises(ConfigError, match="--chat: the model's chat template takes too much"):
        prompts_by(bomb, made).write(ASKED, is_begun=False)


def test_the_harness_renders_no_template_itself(made: list[PromptTemplate]) -> None:
    lm = pytest.importorskip("lm_eval.models.huggingface")
    kind: Any = _with_prompts_by(prompts_by(PLAIN, made).write, lm.HFLM)
    model = kind.__new__(kind)  # without a model, which no prompt needs
    assert model.apply_chat_template(ASKED) == "<user>How far?</s><assistant>"
    assert model.apply_chat_template(BEGUN, add_generation_prompt=False) == "<user>How far?</s><assistant>So far"
