"""Writes prompts by a model's own chat template, within the limits that it has in training."""

from collections.abc import Mapping, Sequence
from typing import Any

from adloco_p2p.data.template_process import TemplateProcess
from adloco_p2p.errors import ConfigError


class PromptTemplate:
    """A chat template that writes prompts, in processes that `close` ends."""

    def __init__(self, template: str, *, special_tokens: Mapping[str, Any], setting: str) -> None:
        """`setting`: the name that errors give to the template."""
        forms = {True: {"continue_final_message": True}, False: {"add_generation_prompt": True}}
        self._processes = {
            is_begun: TemplateProcess(template, has_marks=False, special_tokens={**special_tokens, **form}, setting=setting)
            for is_begun, form in forms.items()
        }

    def write(self, messages: Sequence[Mapping[str, str]], *, is_begun: bool) -> str:
        """Return the text of a conversation up to the place where the model's answer begins, or, where the last message is an
        answer that `is_begun`, up to where it goes on. A template that refuses a system message gets none. Raises what
        `TemplateProcess.render` raises."""
        process = self._processes[is_begun]
        try:
            return process.render(messages)[0]
        except ConfigError as error:
            others = [message for message in messages if message["role"] != "system"]
            if error.code != "E207" or len(others) == len(messages):
                raise
            return process.render(others)[0]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
