"""A model's chat template without its tokenizer: the same Jinja environment as transformers', and none of its imports.

With the files of a model folder alone, `train check` renders conversations as the tokenizer will.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

# For models without a template of their own: words instead of special tokens, so that no vocabulary has to grow.
SIMPLE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}### Assistant:\n{{ message['content'] }}{{ eos_token }}\n\n"
    "{% elif message['role'] == 'user' %}### User:\n{{ message['content'] }}\n\n"
    "{% else %}{{ message['content'] }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)


@lru_cache(maxsize=8)
def compiled(source: str) -> Any:
    """Return a template compiled. Raises ValueError where it is not Jinja."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what an assistant says; the marks themselves render nothing."""

        tags = {"generation"}  # noqa: RUF012 - jinja's own way

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from None


class ChatTemplate:
    """Renders conversations. `special`: the tokenizer's special tokens by name, e.g. bos_token."""

    def __init__(self, source: str, special: dict[str, str]) -> None:
        self.source = source
        self.special = special

    def render(self, messages: Sequence[dict[str, Any]], *, answer_next: bool, tools: Any = None) -> str:
        """Return the conversation as text; raises ValueError where the template refuses it."""
        import jinja2

        try:
            return str(
                compiled(self.source).render(
                    messages=list(messages),
                    tools=tools,
                    documents=None,
                    add_generation_prompt=answer_next,
                    **self.special,
                )
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise ValueError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def of_folder(folder: Path) -> str | None:
    """Return the chat template of a model folder, or None without one. Raises ValueError for a broken file."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = _json(folder / name).get("chat_template")
        if isinstance(found, list):
            found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        if isinstance(found, dict):
            found = found.get("default")
        if isinstance(found, str):
            return found
    return None


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens of a model folder by name, as its tokenizer has them."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in _json(folder / name).items():
            if key.endswith("_token"):
                text = value.get("content") if isinstance(value, dict) else value
                if isinstance(text, str):
                    found[key] = text
    return found


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}
