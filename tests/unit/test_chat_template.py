"""Chat templates render like `transformers`; a template's exceptions become errors that name the conversation."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from specinfer.errors import IncompatibleError, InvalidInputError, SettingError
from specinfer.text.chat.forms import ChatForm
from specinfer.text.chat.hidden import Hider
from specinfer.text.chat.template import ChatEnd, ChatTemplate, stored_templates
from specinfer.text.tokenizer import Tokenizer
from tests.support.system import ascii_tokenizer

TURNS = [{"role": "user", "content": "hi <b> é"}, {"role": "assistant", "content": "so"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
EACH = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEMPLATES = [
    "{{ bos_token }}" + EACH + "{% if add_generation_prompt %}>{% endif %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration -%}{% endfor %}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "{{ messages | tojson(true, 2) }}{{ messages | tojson(indent=4, sort_keys=true) }}",
    "{{ messages | tojson(separators=(',', ':')) }}{{ tools | tojson if tools else 'none' }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ dict(a=1, **{'b': 2}) }}",
    "  {% if true %}\n    {{ messages[0]['content'] }}\n  {% endif %}\n",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_a_conversation_is_rendered_like_transformers(template: str, tools: list[Any]) -> None:
    template += "{# tools #}"  # templates without tools get them as text
    expected, _ = render_jinja_template(
        [TURNS], tools=tools or None, chat_template=template, add_generation_prompt=True, bos_token="<s>"
    )
    assert ChatTemplate(template, {"bos_token": "<s>"}).render(TURNS, tools) == expected[0]


def test_today_is_the_local_day() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m') }}", {})
    assert template.render(TURNS, []) == datetime.now().strftime("%Y-%m")


@pytest.mark.parametrize("stored", [{"default": "a", "tool_use": "b {{ tools }}"}, None])
def test_named_templates_are_chosen_by_tools(stored: dict[str, str] | None) -> None:
    listed = [{"name": "tool_use", "template": "b {{ tools }}"}, {"name": "default", "template": "a"}]
    template = ChatTemplate(stored or listed, {})
    assert template.render(TURNS, []) == "a"
    assert template.render(TURNS, TOOLS).startswith("b [{")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages | tojson(1, 2, 3, 4, 5, 6) }}", "the model's chat template fails: TypeError"),
        ("{{ messages[0].content + 1 }}", "the model's chat template fails: TypeError"),
        ("{{ 1 / 0 }}", "the model's chat template fails: ZeroDivisionError"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "SecurityError|unsafe|not safe"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_an_exception_in_a_template_is_an_error_of_the_conversation(template: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"chat = \['user', 'assistant'\]: .*({reason})"):
        ChatTemplate(template, {}).render(TURNS, [])


HOSTILE = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "power": "{{ 9 ** 99999999 }}",
    "lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "texts": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "times": "{{ 'a' * 10 ** 11 }}",
    "filter": "{{ range(99999) | map('center', 10 ** 7) | list }}",
    "json": "{{ [1] | tojson(indent=10 ** 11) }}",
    "time": "{{ strftime_now('%c' * 10 ** 9) }}",
    "deep": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "brackets": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "nested loops": "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_without_end_is_refused(name: str) -> None:
    """It is stopped in a process of its own; later conversations do not wait for that again."""
    template = ChatTemplate(HOSTILE[name], {})
    problem = template.problem()
    assert problem is not None
    assert template.form() == ChatForm()
    with pytest.raises(InvalidInputError, match=r"chat = .*cannot be used: " + re.escape(problem)):
        template.render(TURNS, [])


def test_a_template_may_exceed_its_limits_for_one_conversation() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content * m.content | int }}{% endfor %}", {})
    for content in ("1" * 11, str(1 << 22)):
        with pytest.raises(InvalidInputError, match=r"chat template fails: (needs|writes) over"):
            template.render([{"role": "user", "content": content}], [])
    assert template.render([{"role": "user", "content": "3"}], []) == "333"


def test_a_conversation_that_is_nested_too_deeply_is_refused() -> None:
    tools: list[Any] = [json.loads("[" * 900 + "]" * 900)]
    with pytest.raises(InvalidInputError, match=r"chat = .*(deep|recursion)"):
        ascii_tokenizer().encode_chat(TURNS, tools)


def test_bad_templates_are_refused() -> None:
    with pytest.raises(IncompatibleError, match="name and template"):
        ChatTemplate([{"title": "x"}], {})
    with pytest.raises(IncompatibleError, match=r"tokenizer_config\.json: chat_template 'default'"):
        ChatTemplate({"default": 3}, {})  # type: ignore[dict-item]
    with pytest.raises(IncompatibleError, match=r"\['rag'\]"):
        ChatTemplate({"rag": "x"}, {}).render(TURNS, [])
    with pytest.raises(IncompatibleError, match="the model has no chat template"):
        ChatTemplate(None, {}).render(TURNS, [])


def test_places_of_templates(tmp_path: Path) -> None:
    config: dict[str, Any] = {"chat_template": "config"}
    assert stored_templates(tmp_path, {}) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "beside"}))
    assert stored_templates(tmp_path, {}) == "beside"
    assert stored_templates(tmp_path, config) == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert stored_templates(tmp_path, config) == {"default": "file", "tool_use": "tools"}


def test_templates_are_utf_8_without_a_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "io.text_encoding", lambda encoding, *_: encoding or "latin-1"
    )  # encoding of the locale
    (tmp_path / "chat_template.jinja").write_bytes(b"\xef\xbb\xbf" + "größe".encode())
    assert stored_templates(tmp_path, {}) == {"default": "größe"}


def test_a_template_that_cannot_be_read_is_logged_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tokenizer.json").write_text(ascii_tokenizer().to_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for %}"}))
    tokenizer = Tokenizer.load(tmp_path)
    assert "chat template cannot be read: conversations will be refused" in caplog.text
    with pytest.raises(InvalidInputError, match="chat ="):
        tokenizer.encode_chat(TURNS)


def test_a_template_in_a_file_replaces_that_of_the_model(tmp_path: Path) -> None:
    """The fingerprint that compares verifiers remains that of the model."""
    tokenizer, path = ascii_tokenizer(), tmp_path / "own.jinja"
    before = tokenizer.text_fingerprint()
    path.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    tokenizer.use_chat_template(path)
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "hi"}])) == "<hi>"
    assert tokenizer.text_fingerprint() == before
    path.write_text("{% for m in messages %}")
    with pytest.raises(SettingError, match=r"chat_template = .*own.jinja"):
        tokenizer.use_chat_template(path)
    with pytest.raises(SettingError, match="cannot be read"):
        tokenizer.use_chat_template(tmp_path / "none.jinja")


@pytest.mark.parametrize("last", ["Sure", " Sure ", "Sure\n", "<b>\n\nx  ", "<", "end", "|"])
@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
        "{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
        "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}{% if add_generation_prompt %}<a>{% endif %}",
    ],
)
def test_conversations_are_continued_like_in_transformers(template: str, last: str) -> None:
    messages = [{"role": "user", "content": "Sure"}, {"role": "assistant", "content": last}]
    ends: list[tuple[ChatEnd, dict[str, Any]]] = [
        (ChatEnd.OPENED, {"add_generation_prompt": True}),
        (ChatEnd.CLOSED, {"add_generation_prompt": False}),
        (ChatEnd.CONTINUED, {"continue_final_message": True}),
    ]
    for end, options in ends:
        expected, _ = render_jinja_template([messages], chat_template=template, **options)
        assert ChatTemplate(template, {}).render(messages, (), end) == expected[0], end


def test_a_conversation_whose_last_message_is_changed_cannot_be_continued() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content | upper }}{% endfor %}", {})
    with pytest.raises(InvalidInputError, match="last message"):
        template.render([{"role": "assistant", "content": "Sure"}], (), ChatEnd.CONTINUED)


CONTENT = "messages[0].content"


@pytest.mark.parametrize(
    "expression",
    [
        f"{CONTENT} in '<a>b</a> and more'",
        f"{CONTENT} not in 'b'",
        f"{CONTENT} is in '<a>b</a>'",
        f"{CONTENT} | escape",
        f"'&lt;' in ({CONTENT} | e)",
        f"{CONTENT} | striptags",
        f"{CONTENT} | urlencode",
        f"{CONTENT} | title",
        f"{CONTENT} | capitalize",
    ],
)
def test_operations_on_hidden_texts_are_those_of_jinja(expression: str) -> None:
    text, hider = f"{{{{ {expression} }}}}", Hider(["<a>", "</a>"])
    template, turns = ChatTemplate(text, {}), [{"role": "user", "content": "<a>b</a>"}]
    assert hider.show(template.render(turns, [], hider=hider)) == template.render(turns, [])
