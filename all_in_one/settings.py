"""Settings of the server in one process (environment prefix SPECINFER_SERVE_)."""

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gateway.settings import RequestSettings
from http_svc.settings import ApiSettings
from specinfer.model.formats.registry import find_format
from specinfer.options.model_options import AUTO_DRAFT, Draft, ServedOptions
from specinfer.system.threads import thread_count


def named_model(argv: Sequence[str]) -> list[str]:
    """Return the arguments of `serve` with a leading model as an option."""
    return ["--model", *argv] if argv and not argv[0].startswith("-") else list(argv)


class ServeSettings(ApiSettings, RequestSettings, ServedOptions):  # type: ignore[misc]  # not frozen
    """OpenAI's API for one model, all in one process: specinfer serve [MODEL] [OPTIONS]."""

    group: ClassVar[str] = "Model"

    model_config = SettingsConfigDict(**{**ApiSettings.model_config, "env_prefix": "SPECINFER_SERVE_"})

    draft: Draft = AUTO_DRAFT
    store: str = Field(
        "",
        description="File of requests and their tokens, so that streams continue after a restart; empty: in "
        "memory.",
    )

    @classmethod
    def load(cls, program: str, argv: Sequence[str]) -> Self:
        """Read settings; the first argument may be the model."""
        return super().load(program, named_model(argv))

    def check(self) -> None:
        """Check what is known before the model is loaded, too."""
        thread_count(self.threads)
        find_format(self.weights)
        super().check()
