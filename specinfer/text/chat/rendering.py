"""Render chat templates in a process of their own, as `transformers` does.

A model's template is a program by the file's author: this process has limits of time and memory, after which the
kernel ends it. `specinfer.text.chat.bounded` starts it. Each line is a JSON object: first the templates, then tasks.
"""

import json
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specinfer.text.chat.hidden import HiddenText, Hider

SECONDS = 2.0
"""Processor seconds for a conversation, and again for each megabyte.

A usual conversation takes a millisecond.
"""
MEMORY_BYTES = 1 << 30
_LONGEST_REASON = 2000


class _Generation(Extension):
    """Jinja tag `{% generation %}`, used in training: render its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Code(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Join the operands of `~` like the output of macros and blocks."""
        self.write("concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        """Let `in` find hidden texts in the template's own."""
        if node.op not in ("in", "notin"):
            super().visit_Operand(node, frame)
            return
        self.write(f" {'not ' * (node.op == 'notin')}in environment.hidden(")
        self.visit(node.expr, frame)
        self.write(")")


_OF_CHARACTERS = ("e", "escape", "forceescape", "striptags", "urlencode", "title", "capitalize")
"""Filters of single characters, some of which hide names."""


class _Environment(ImmutableSandboxedEnvironment):
    """Environment that sees hidden names in all texts.

    Results of operations keep what is hidden in their operands, and their methods see it.
    """

    code_generator_class = _Code
    intercepted_binops = frozenset({"%", "*"})
    hider: Hider | None = None
    """Set while a conversation with hidden names is rendered."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self.filters["tojson"] = _to_json
        self.filters = {name: self._seeing(name, work) for name, work in self.filters.items()}
        self.tests["in"] = lambda value, among: value in self.hidden(among)
        self.concat = lambda parts: self._seen("".join(parts))  # type: ignore[method-assign]  # as jinja2 wants it

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as jinja2
        return __self._seen(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return self._seen(super().call_binop(context, operator, left, right))

    def hidden(self, among: Any) -> Any:
        """Return the right side of `in`, with hidden names if it is a text."""
        return self.hider.hide(among) if self.hider is not None and type(among) is str else among

    def _seeing(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def seeing(*args: Any, **options: Any) -> Any:
            if name in _OF_CHARACTERS and self.hider is not None and isinstance(args[0], HiddenText):
                return self.hider.hide(str(work(self.hider.show(args[0]), *args[1:], **options)))
            return self._seen(work(*args, **options))

        return wraps(work)(seeing)

    def _seen(self, value: Any) -> Any:
        return value if self.hider is None or type(value) is not str else self.hider.seen(value)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as in `transformers`


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode JSON without Jinja's escapes for HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _BEYOND_ASCII.sub(_escaped, text) if ensure_ascii else text


_BEYOND_ASCII = re.compile("[^\x00-\x7f\udc00-\udfff]")
"""Characters to escape; surrogates hide characters (`Hider`) and stay."""


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


class _Renderer:
    def __init__(self, texts: Mapping[str, str], specials: Mapping[str, Any]) -> None:
        self._texts, self._specials = texts, specials
        self._environment = _Environment()
        self._compiled: dict[str, Template] = {}
        self._hiders: dict[str, Hider] = {}

    def answer(self, line: bytes) -> dict[str, str]:
        """Return the text, a refusal of the template or a failure."""
        hider = None
        try:
            asked = json.loads(line)
            if (values := asked.get("values")) is None:
                return self._problem()
            if signs := asked["signs"]:
                hider = self._hiders.setdefault(signs, Hider(signs))
                values = hider.seen_in(values) if b"\\ud" in line else values
            self._environment.hider = hider
            text = self._template(asked["name"]).render(values | self._specials)
            most = 4 * len(line) + (1 << 20)
            return {"text": text} if len(text) <= most else {"failed": f"writes over {most} characters"}
        except TemplateError as error:
            return {"refused": _shortened(str(error), hider)}
        except MemoryError:  # ends the process
            raise
        except Exception as error:  # noqa: BLE001  it is the template's code, which may raise anything
            return {"failed": f"{type(error).__name__}: {_shortened(str(error), hider)}"}

    def _problem(self) -> dict[str, str]:
        for name in self._texts:
            try:
                self._template(name)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001  Python's compiler raises several types
                reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
                return {"problem": f"{name}: {_shortened(reason, None)}"}
        return {}

    def _template(self, name: str) -> Template:
        """Return a compiled template; compiling takes milliseconds."""
        if name not in self._compiled:
            self._compiled[name] = self._environment.from_string(self._texts[name])
        return self._compiled[name]


def _shortened(reason: str, hider: Hider | None) -> str:
    return (hider.show(reason) if hider else reason)[:_LONGEST_REASON]


def _serve(lines: Iterable[bytes]) -> None:
    with suppress(ValueError):  # a lower limit applies already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for number in (signal.SIGINT, signal.SIGTERM):  # are for the parent, whose end closes the pipe
        signal.signal(number, signal.SIG_IGN)
    renderer = None
    for line in lines:
        signal.setitimer(signal.ITIMER_PROF, SECONDS * (1 + len(line) / 1e6))
        if renderer is None:
            renderer = _Renderer(**json.loads(line))
            continue
        answer = renderer.answer(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer)
